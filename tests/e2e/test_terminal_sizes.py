"""A terminal whose size changes while an answer is written: nothing is left behind, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.test_chat import Home
from tests.terminal_screen import ENTER, TerminalScreen
from tests.tmux import Tmux, needs_tmux

WORDS = [f"word{number:02}" for number in range(60)]
ANSWER = f"{' '.join(WORDS)}\n\nend"
PROMPT = r"(?m)^>$"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.scripted(lines=[ANSWER], pause_s=0.05)
    return home


def once(shown: str, last: str) -> None:
    """The question and the answer are there up to this word, and nothing of them twice."""
    wanted = ["> go", "Everthread with", *WORDS[: WORDS.index(last) + 1]]
    wrong = {each: shown.count(each) for each in wanted if shown.count(each) != 1}
    assert wrong == {}, shown


def _some_above(window: Tmux) -> None:
    """What has gone off the screen can't be drawn anew: there is room for what will be wrapped."""
    window.expect(PROMPT)
    window.type("/help")
    window.press("Enter")
    window.expect("/quit  ")


@needs_tmux
@pytest.mark.parametrize("columns", [50, 33, 140])
def test_a_new_width_leaves_nothing_of_the_old_drawing_where_lines_are_wrapped_anew(
    home: Home, tmp_path: Path, columns: int
) -> None:
    with Tmux(tmp_path, home.command(), columns=100, rows=40) as window:
        _some_above(window)
        window.type("go")
        window.press("Enter")
        window.expect("word25")
        window.resize(columns, 36)
        once(window.expect("word40"), "word40")
        window.resize(columns - 9, 40)
        window.expect(r"(?m)^end$")
        once(window.expect(PROMPT), "word59")


@needs_tmux
def test_what_is_being_typed_on_several_rows_is_seen_once_at_a_new_width(home: Home, tmp_path: Path) -> None:
    with Tmux(tmp_path, home.command(), columns=100, rows=40) as window:
        _some_above(window)
        window.type(" ".join(WORDS) + " " + "日本語もある。" * 9)
        window.expect("word59")
        window.resize(45, 40)
        window.type(" and")
        shown = window.expect("。 and")
        # The input shows its last rows.
        assert "word00" not in shown
        entered = "".join(shown[shown.index("/quit  ") :].split())
        assert "".join(WORDS[20:]) + "日本語もある。" * 9 + "and" in entered
        assert entered.count("word30") == 1, shown


@needs_tmux
def test_fewer_rows_take_nothing_of_what_is_above_the_input_in_tmux(home: Home, tmp_path: Path) -> None:
    with Tmux(tmp_path, home.command(), columns=90, rows=24) as window:
        _some_above(window)
        for number, rows in enumerate((23, 22, 12, 5), start=1):
            window.resize(90, rows)
            window.type("x")
            window.expect(rf"(?m)^/quit .*\n> x{{{number}}}\n .* memory ok$")


def test_fewer_rows_take_nothing_of_what_is_above_the_input(home: Home) -> None:
    with TerminalScreen(home.command(), _env(), columns=90, rows=24) as seen:
        seen.expect(PROMPT)
        seen.type("/help" + ENTER)
        seen.expect("/quit  ")
        for number, rows in enumerate((23, 22, 12, 5), start=1):
            seen.resize(90, rows)
            seen.type("x")
            seen.expect(rf"(?m)^/quit .*\n> x{{{number}}}\n .* memory ok$")


def _env() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    kept.pop("TMUX", None)
    return kept


@pytest.mark.parametrize(("columns", "rows"), [(50, 36), (33, 40), (77, 20), (140, 16)])
def test_a_new_size_loses_nothing_where_lines_are_cut(home: Home, columns: int, rows: int) -> None:
    with TerminalScreen(home.command(), _env(), columns=100, rows=40) as seen:
        seen.expect(PROMPT)
        seen.type("go" + ENTER)
        seen.expect("word25")
        seen.resize(columns, rows)
        seen.expect("word40")
        once(seen.scrolled(), "word40")
        seen.expect(r"(?m)^end$")
        seen.settle()
        once(seen.scrolled(), "word59")
