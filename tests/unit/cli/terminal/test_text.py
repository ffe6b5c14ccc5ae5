"""Plain text on narrow terminals."""

from __future__ import annotations

import pytest

from everthread.cli.terminal.text import wrap_text


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("short", 10, ["short"]),
        ("no word is cut", 11, ["no word is", "cut"]),
        ("  stays indented here", 14, ["  stays", "  indented", "  here"]),
        ("/stop    Stop what is written", 20, ["/stop    Stop what", "         is written"]),
        ("/a-long-command    Do it now", 20, ["/a-long-command", "  Do it now"]),
        ("x" * 25, 11, ["x" * 10, "x" * 10, "x" * 5]),
        ("one\n\ntwo", 10, ["one", "", "two"]),
    ],
)
def test_rows_end_between_words_and_begin_below_what_they_go_on_with(text: str, columns: int, rows: list[str]) -> None:
    assert wrap_text(text, columns).split("\n") == rows
