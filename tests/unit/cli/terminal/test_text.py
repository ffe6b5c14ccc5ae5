"""Text wrapped to the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from everthread.cli.terminal.text import Span, format_line, wrap_exactly, wrap_spans, wrap_text


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
def test_text_is_wrapped_between_words_and_indented(text: str, columns: int, rows: list[str]) -> None:
    assert wrap_text(text, columns).split("\n") == rows


@given(st.lists(st.text(alphabet="ab 日\n", max_size=30)), st.integers(2, 20))
def test_wrapping_spans_loses_nothing(texts: list[str], columns: int) -> None:
    lines = wrap_spans([Span(text) for text in texts], columns)
    whole = "".join(span.text for line in lines for span in line)
    assert whole == "".join(texts).replace("\n", "")
    assert all(get_cwidth("".join(span.text for span in line).rstrip()) <= columns for line in lines)


def test_a_line_has_its_codes_and_no_trailing_blanks() -> None:
    line = [Span("bold", ("1",)), Span(" red ", ("31",)), Span("  ", ("4",))]
    assert format_line(line, colour=True) == "\x1b[1mbold\x1b[0m\x1b[31m red\x1b[0m"
    assert format_line(line, colour=False) == "\x1b[1mbold\x1b[0m red"


@given(st.text(alphabet="a \n日", max_size=200), st.integers(11, 40))
def test_a_call_to_approve_loses_no_space_when_its_lines_are_cut(text: str, columns: int) -> None:
    rows = wrap_exactly(text, columns).split("\n")
    assert all(get_cwidth(row) < columns for row in rows)
    assert "".join(rows) == text.replace("\n", "")
