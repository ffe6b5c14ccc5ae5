"""Texts formatted for one line of a terminal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.text_format import (
    display_width,
    format_call,
    one_line,
    pluralize,
    quote_start,
    shorten,
    show_invisible,
)

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


def test_a_short_call_is_one_line_and_a_long_one_has_a_line_for_each_argument() -> None:
    assert format_call("run", {"a": 1, "b": [True, "x\ny"]}) == 'run {"a": 1, "b": [true,"x\\ny"]}'
    assert format_call("run", {}) == "run {}"
    assert format_call("write", {"path": "/x", "text": 'one\n\n"path": "/y"'}) == (
        'write\n"path": "/x"\n"text":\n  | one\n  | \n  | "path": "/y"'
    )
    assert format_call("run", {"a": "x" * 120, "b": 1}) == f'run\n"a": "{"x" * 120}"\n"b": 1'


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=300), max_size=4))
def test_a_call_is_shown_in_full(arguments: dict[str, str]) -> None:
    """Every argument can be read back from its description."""
    text = format_call("run", arguments)
    assert text.replace("\n", "").isprintable()
    for value in arguments.values():
        for line in value.split("\n"):
            encoded = msgspec.json.encode(line).decode()[1:-1]
            assert show_invisible(encoded) in text or show_invisible(line) in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb c", "a\nb c"),
        ("日本 é", "日本 é"),
        ("safe\u202egpj.exe", r"safe\u202egpj.exe"),
        ("\u2066\u2069\u200b\u200d\ufeff\u00ad", r"\u2066\u2069\u200b\u200d\ufeff\u00ad"),
        ("\x1b[2J\r\t\x7f\x85", r"\u001b[2J\u000d\u0009\u007f\u0085"),
        ("\u2028\u00a0\u3000", r"\u2028\u00a0\u3000"),
        ("\u3164\u2800\u115f\ufe0f", r"\u3164\u2800\u115f\ufe0f"),
        ("\U000e0041\U000e0101", r"\U000e0041\U000e0101"),
    ],
)
def test_invisible_and_reordering_characters_become_visible(text: str, shown: str) -> None:
    assert show_invisible(text) == shown
