"""`everthread sessions browse`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.e2e.cli.commands.sessions.sessions_home import SampleHome
from tests.e2e.commands import everthread, refused
from tests.terminal_screen import DOWN, ENTER, ESCAPE, TerminalScreen


def test_browse_needs_a_terminal(sample: SampleHome) -> None:
    refused(everthread(sample.home, "sessions", "browse"), 2, "terminal")


def browsing(home: Path) -> TerminalScreen:
    command = [sys.executable, "-m", "everthread", "--home", str(home), "sessions", "browse"]
    return TerminalScreen(command, dict(os.environ))


LONG_LIST = """
import asyncio
from everthread.cli.picker import pick
print("said before\\n" * 12)
print("taken:", asyncio.run(pick("Many", [f"row {number} of a list that is long and wide" for number in range(60)])))
"""


def test_the_list_is_redrawn_when_the_terminal_is_resized() -> None:
    with TerminalScreen([sys.executable, "-c", LONG_LIST], dict(os.environ), columns=80, rows=24) as seen:
        seen.expect("Enter selects")
        for columns, rows in ((50, 10), (100, 30), (30, 5)):
            seen.resize(columns, rows)
            seen.until(lambda rows=rows: len(seen.rows()) == rows, "a whole picture")
            lines = seen.settle().splitlines()
            assert lines[:2] == ["Many", "filter:"]
            assert [line[2:8].strip() for line in lines[2:-1]] == [f"row {number}" for number in range(rows - 3)]
            assert lines[-1].startswith("60 of 60; up/down move")
        assert b"\x1b[6n" not in seen.raw
        seen.type(DOWN + ENTER)
        assert seen.ended() == 0
        assert seen.shown() == "taken: 1"


def test_browse_filters_and_shows_the_chosen_session(sample: SampleHome) -> None:
    with browsing(sample.home) as seen:
        seen.expect("6 of 6")
        seen.type("taxes")
        seen.expect("> .*Taxes")
        seen.type(ENTER)
        assert seen.ended() == 0
        assert "how much tax" in seen.shown()
        assert "filter:" not in seen.shown(), "the list must be cleared from the screen"


@pytest.mark.parametrize("key", [ESCAPE, "q"])
def test_browse_can_be_quit_without_output(key: str, sample: SampleHome) -> None:
    with browsing(sample.home) as seen:
        seen.expect("filter:")
        seen.type(DOWN)
        seen.type(key)
        assert seen.ended() == 0
        assert seen.shown() == ""
