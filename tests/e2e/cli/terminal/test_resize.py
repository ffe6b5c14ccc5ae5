"""A terminal that is resized during an answer: no old lines remain, and no text is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.e2e.chat_home import LONG, PROMPT, Home, OpenScreen
from tests.terminal_screen import ENTER, TerminalScreen
from tests.tmux import Tmux, needs_tmux

WORDS = [f"word{number:02}" for number in range(60)]
ANSWER = f"{' '.join(WORDS)}\n\nend"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.set_script(lines=[ANSWER], pause_s=0.05)
    return home


def assert_shown_once(shown: str, last: str) -> None:
    """Check that the question and the answer up to `last` are shown exactly once."""
    wanted = ["> go", "Everthread with", *WORDS[: WORDS.index(last) + 1]]
    wrong = {each: shown.count(each) for each in wanted if shown.count(each) != 1}
    assert wrong == {}, shown


def _fill_above(window: Tmux) -> None:
    """Fill the screen with help text, so that rewrapped lines stay on the screen."""
    window.expect(PROMPT)
    window.type("/help")
    window.press("Enter")
    window.expect("/quit  ")


@needs_tmux
@pytest.mark.parametrize("columns", [50, 33, 140])
def test_a_new_width_leaves_no_old_lines_where_the_terminal_rewraps(home: Home, tmp_path: Path, columns: int) -> None:
    with Tmux(tmp_path, home.command(), columns=100, rows=40) as window:
        _fill_above(window)
        window.type("go")
        window.press("Enter")
        window.expect("word25")
        window.resize(columns, 36)
        assert_shown_once(window.expect("word40"), "word40")
        window.resize(columns - 9, 40)
        window.expect(r"(?m)^end$")
        assert_shown_once(window.expect(PROMPT), "word59")


@needs_tmux
def test_input_on_several_rows_is_shown_once_after_a_new_width(home: Home, tmp_path: Path) -> None:
    with Tmux(tmp_path, home.command(), columns=100, rows=40) as window:
        _fill_above(window)
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
def test_fewer_rows_keep_the_text_above_the_input_in_tmux(home: Home, tmp_path: Path) -> None:
    with Tmux(tmp_path, home.command(), columns=90, rows=24) as window:
        _fill_above(window)
        for number, rows in enumerate((23, 22, 12, 5), start=1):
            window.resize(90, rows)
            window.type("x")
            window.expect(rf"(?m)^/quit .*\n> x{{{number}}}\n .* memory ok$")


def test_fewer_rows_keep_the_text_above_the_input(home: Home) -> None:
    with TerminalScreen(home.command(), _terminal_env(), columns=90, rows=24) as screen:
        screen.expect(PROMPT)
        screen.type("/help" + ENTER)
        screen.expect("/quit  ")
        for number, rows in enumerate((23, 22, 12, 5), start=1):
            screen.resize(90, rows)
            screen.type("x")
            screen.expect(rf"(?m)^/quit .*\n> x{{{number}}}\n .* memory ok$")


def _terminal_env() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    kept.pop("TMUX", None)
    return kept


@pytest.mark.parametrize(("columns", "rows"), [(50, 36), (33, 40), (77, 20), (140, 16)])
def test_a_new_size_loses_nothing_where_the_terminal_cuts_lines(home: Home, columns: int, rows: int) -> None:
    with TerminalScreen(home.command(), _terminal_env(), columns=100, rows=40) as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("word25")
        screen.resize(columns, rows)
        screen.expect("word40")
        assert_shown_once(screen.scrolled(), "word40")
        screen.expect(r"(?m)^end$")
        screen.settle()
        assert_shown_once(screen.scrolled(), "word59")


def test_the_input_area_is_redrawn_after_a_resize(home: Home, open_screen: OpenScreen) -> None:
    home.set_script(lines=[f"{LONG} {LONG}\n\nend"], pause_s=0.2)
    with open_screen(columns=100, rows=30) as screen:
        screen.expect(PROMPT)
        screen.type("go" + ENTER)
        screen.expect("charlie")
        screen.resize(50, 20)
        screen.expect("end\n")
        screen.settle()
        assert max(len(row) for row in screen.rows()) <= 50
        assert "untitled · one" in screen.shown()
        screen.resize(120, 40)
        screen.type("wide again")
        screen.expect("> wide again")
        screen.expect("untitled · fake/one")
