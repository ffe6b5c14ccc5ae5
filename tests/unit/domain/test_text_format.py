"""Texts formatted for one line of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.text_format import display_width, format_call, one_line, pluralize, quote_start, shorten

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]), max_size=80)


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("as it is", 8, "as it is"),
        ("too long by one", 14, "too long by..."),
        ("two\nlines\x1b[2J", 40, "two lines [2J"),
        # Each of these characters takes two columns, each dot one.
        ("日本旅行", 8, "日本旅行"),
        ("日本旅行", 7, "日本..."),
        ("日本旅行", 6, "日..."),
        # Combining marks take no column.
        ("e\u0301" * 8, 8, "e\u0301" * 8),
        ("x" * 1_000_000, 5, "xx..."),
        # A text shortened to blanks is still marked as cut.
        ("a" + " " * 100 + "b", 10, "a..."),
    ],
)
def test_a_text_is_cut_to_its_width_in_columns(text: str, columns: int, shown: str) -> None:
    assert shorten(text, columns) == shown


@given(ANY_TEXT, st.integers(3, 60))
def test_any_text_fits_its_width(text: str, columns: int) -> None:
    line = shorten(text, columns)
    assert display_width(line) <= columns
    assert line == one_line(line)


def test_numbers_and_excerpts_are_formatted() -> None:
    assert (pluralize(1, "turn"), pluralize(2, "turn"), pluralize(0, "entry", "entries")) == (
        "1 turn",
        "2 turns",
        "0 entries",
    )
    assert quote_start("日" * 40) == f'"{"日" * 28}..."'


def test_a_cut_tool_call_is_marked_in_the_approval_question() -> None:
    assert format_call("run", '{"a": 1}') == 'run {"a": 1}'
    for hidden in ("x" * 2_001, "日" * 1_001, " " * 9_000 + "x", "e\u0301" * 1_500):
        assert f"[{len(hidden)} characters in all]" in format_call("run", hidden)
