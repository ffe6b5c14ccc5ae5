"""The panel of a resumed session on a real terminal."""

from __future__ import annotations

import pytest
from tests.e2e.chat_home import ANSWER, Home, OpenScreen, assert_screen

SIZES = [(60, 40), (100, 40), (200, 50)]


@pytest.mark.parametrize(("columns", "rows"), SIZES)
def test_resuming_shows_the_last_turns(home: Home, open_screen: OpenScreen, columns: int, rows: int) -> None:
    home.set_script(lines=["Short answer."])
    home.ask("-p", "What about a question that is so long that it can't be shown on one line, however wide? " * 3)
    home.set_script(lines=[{"tool": "look"}, {"tool": "look"}, ANSWER])
    home.ask("-c", "-p", "Plan me a trip")
    with open_screen("-c", columns=columns, rows=rows) as screen:
        screen.expect("╰─")
        assert_screen(f"recap-{columns}", screen.settle())
