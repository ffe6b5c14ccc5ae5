"""Markdown rendered for Telegram, read back by the strict parser of the emulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.adapters.platforms.telegram.markdown import CHARS_MAX, render, utf16_length
from everthread.testing.telegram.markdown import parse_v2

MARKS = "*_~`[]()>#+-=|{}.!\\&<:/ \n\t0123abc😀é"
PIECES = st.sampled_from(
    [
        *("**", "*", "_", "__", "~~", "~", "`", "``", "```", "```py\n", "\n", "\n\n", "> ", ">> ", "- ", "1. ", "2) "),
        *("# ", "### ", "[a](http://b.c)", "![x](y)", "[", "](", ")", "|a|b|\n|-|-|\n|c|d|\n", "---\n", "***", "word"),
        *(" ", "  ", "    ", "\t", "\\", "&amp;", "<b>", "http://a.b/c_d", "<http://e.f>", "😀", "||", "![", "__a__"),
        *("\r", "\x0b", "\u2028"),
    ]
)
TABLE = "| a | b |\n|---|---|\n| 1 | 2 |"


def shown(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the visible text and its styles, each with the text that it covers."""
    made = render(text)
    assert made is not None
    seen, entities = parse_v2(made)
    raw = seen.encode("utf-16-le")
    return seen, [
        (one.type, raw[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le")) for one in entities
    ]


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(max_size=300), st.text(MARKS, max_size=120), st.lists(PIECES, max_size=40).map("".join)))
def test_any_rendered_text_can_be_parsed_and_fits_a_message(text: str) -> None:
    made = render(text)
    if made is not None:
        seen, _ = parse_v2(made)
        assert seen.strip()
        assert utf16_length(seen) <= CHARS_MAX


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=50))
def test_text_without_markup_stays_unchanged(text: str) -> None:
    assert shown(f"say {text}") == (f"say {text}", [])


@pytest.mark.parametrize(
    ("text", "seen", "styles"),
    [
        ("a **b** c", "a b c", [("bold", "b")]),
        ("*a* ~~b~~ `c_d`", "a b c_d", [("italic", "a"), ("strikethrough", "b"), ("code", "c_d")]),
        ("***both***", "both", [("bold", "both"), ("italic", "both")]),
        ("**a `b` c**", "a b c", [("bold", "a "), ("code", "b"), ("bold", " c")]),
        ("# Title\ntext", "Title\n\ntext", [("bold", "Title")]),
        ("[here](https://a.b/c_(d))", "here", [("text_link", "here")]),
        ("[here](nowhere)", "here", []),
        ("- a\n- b\n  - c", "• a\n• b\n  • c", []),
        ("3. a\n4. b", "3. a\n4. b", []),
        ("> a **b\n> c**\n\nd", "a b\nc\n\nd", [("blockquote", "a b\nc\n"), ("bold", "b"), ("bold", "c")]),
        ("```py\nx = `1`\n```", "x = `1`", [("pre", "x = `1`")]),
        (TABLE, TABLE, [("pre", TABLE)]),
        ("snake_case and 2*3*4 = 24!", "snake_case and 234 = 24!", [("italic", "3")]),
        ("<b>no</b> &amp; yes", "<b>no</b> & yes", []),
        ("an answer **that is not", "an answer **that is not", []),
        ("```\nnot closed", "not closed", [("pre", "not closed")]),
        ("two\nlines", "two\nlines", []),
    ],
)
def test_markdown_is_rendered_as_text_and_styles(text: str, seen: str, styles: list[tuple[str, str]]) -> None:
    assert shown(text)[0] == seen
    assert sorted(shown(text)[1]) == sorted(styles)


@pytest.mark.parametrize("text", ["", "  \n", "```\n```", ">", "[](x)", "😀" * (CHARS_MAX // 2 + 1) + "*"])
def test_empty_or_too_long_results_are_not_rendered(text: str) -> None:
    assert render(text) is None


def test_length_is_counted_in_utf16_units() -> None:
    assert (utf16_length("abc"), utf16_length("é"), utf16_length("😀")) == (3, 1, 2)
