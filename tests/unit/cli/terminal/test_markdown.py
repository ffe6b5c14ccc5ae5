"""Markdown as it is drawn on a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from everthread.cli.terminal.highlight import highlight
from everthread.cli.terminal.markdown import MarkdownRenderer
from everthread.cli.terminal.styles import TextStyle
from everthread.cli.terminal.text import Span, wrap_spans

_CODES = re.compile(r"\x1b\[[0-9;]*m")
_MARKDOWN = st.lists(
    st.sampled_from(
        [
            "# head",
            "word " * 9,
            "- item",
            "  - deeper",
            "12. number",
            "> said",
            "```py",
            "```",
            "|a|b|",
            "|-|-:|",
            "|x|日本語|",
        ]
        + [
            "",
            "[a](https://example.org/some/where)",
            "**b** *i* `c`",
            "a" * 70,
            "日本語" * 20,
            "---",
            "<b>x</b>",
            "    code",
        ]
    ),
    max_size=12,
).map("\n".join)


def _seen(text: str, columns: int = 60) -> list[str]:
    return _CODES.sub("", MarkdownRenderer(TextStyle()).markdown(text, columns)).splitlines()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("two\nlines", ["two lines"]),
        ("hard  \nbreak", ["hard", "break"]),
        ("- a\n- b\n  - c", [" • a", " • b", "    • c"]),
        ("- a\n\n  more\n- b", [" • a", "", "   more", " • b"]),
        ("9. nine\n10. ten", ["  9 nine", " 10 ten"]),
        ("> a\n>\n> b", ["▌ a", "▌", "▌ b"]),
        ("see [it](https://example.org)", ["see it (https://example.org)"]),
        ("<https://example.org>", ["https://example.org"]),
        ("before ![a cat](cat.png) after", ["before a cat (cat.png) after"]),
        ("a <b>tag</b>", ["a <b>tag</b>"]),
        ("```\na\tb\n\n  c\n```", ["  a   b", "", "    c"]),
        ("|a|n|\n|-|-:|\n|b|12|", [" a   n", " ─────", " b  12"]),
        ("one\n\n---\n\ntwo", ["one", "", "─" * 60, "", "two"]),
    ],
)
def test_each_kind_of_block_has_its_look(text: str, rows: list[str]) -> None:
    assert _seen(text) == rows


def test_an_image_stays_in_its_place_and_pushes_no_word_over_the_edge() -> None:
    rows = _seen(f"{'word ' * 11}![pic](a.png) and more", 60)
    assert " ".join(rows).split() == [*["word"] * 11, "pic", "(a.png)", "and", "more"]


def test_a_table_that_is_too_wide_takes_from_its_widest_column() -> None:
    rows = _seen(f"|name|what|\n|-|-|\n|short|{'long ' * 20}|", 40)
    assert max(len(row) for row in rows) <= 40
    assert rows[2].startswith(" short  long")
    assert " ".join(rows).count("long") == 20


@given(_MARKDOWN, st.integers(12, 100))
def test_no_row_is_wider_than_the_terminal_and_no_letter_is_lost(text: str, columns: int) -> None:
    rows = _seen(text, columns)
    # What is nested has at least ten columns, and lists here are two deep.
    assert all(get_cwidth(row) <= max(columns, 30) for row in rows)
    for letter in "日本語":
        assert "".join(rows).count(letter) == text.count(letter) or "|x|" in text


@given(st.lists(st.text(alphabet="ab 日\n", max_size=30)), st.integers(2, 20))
def test_wrapping_leaves_nothing_out(texts: list[str], columns: int) -> None:
    lines = wrap_spans([Span(text) for text in texts], columns)
    whole = "".join(span.text for line in lines for span in line)
    assert whole == "".join(texts).replace("\n", "")
    assert all(get_cwidth("".join(span.text for span in line).rstrip()) <= columns for line in lines)


def test_colours_go_and_weights_stay_where_none_are_wanted() -> None:
    text = "**bold** `code`\n\n```python\nreturn 1\n```"
    coloured, plain = (
        MarkdownRenderer(TextStyle()).markdown(text, 60),
        MarkdownRenderer(TextStyle(colour=False)).markdown(text, 60),
    )
    assert set(re.findall(r"\x1b\[([0-9;]+)m", plain)) == {"1", "0"}
    assert {"36", "94"} <= set(re.findall(r"\x1b\[([0-9;]+)m", coloured))
    assert _CODES.sub("", plain) == _CODES.sub("", coloured)


@pytest.mark.parametrize(
    ("language", "text", "parts"),
    [
        ("python", 'def a():  # why\n    return "x"', {"def": "94", "# why": "2", "return": "94", '"x"': "33"}),
        ("js", "const a = 12 // why", {"const": "94", "12": "96", "// why": "2"}),
        ("SQL", "SELECT 1 -- why", {"SELECT": "94", "1": "96", "-- why": "2"}),
        ("bash", "echo $#  # why", {"echo": "94", "# why": "2"}),
        ("rust", "fn f<'a>(x: &'a str)", {"fn": "94"}),
        ("diff", "+a\n-b\n c", {"+a\n": "32", "-b\n": "31"}),
        ("klingon", "def 1", {}),
    ],
)
def test_code_has_the_colours_of_its_language(language: str, text: str, parts: dict[str, str]) -> None:
    spans = highlight(text, language, dark=True)
    assert "".join(span.text for span in spans) == text
    assert {span.text: span.codes[0] for span in spans if span.codes} == parts


def test_code_is_drawn_for_what_is_behind_it() -> None:
    assert highlight("return", "python", dark=True) != highlight("return", "python", dark=False)


@pytest.mark.parametrize("text", ["`code`", "- item", "1. item"])
def test_what_stands_out_can_be_read_on_white_too(text: str) -> None:
    dark, light = (MarkdownRenderer(TextStyle(dark=dark)).markdown(text, 60) for dark in (True, False))
    assert "\x1b[36m" in dark
    assert "\x1b[34m" in light
    assert "\x1b[36m" not in light


@pytest.mark.parametrize(
    "text", ['\\"' * 20_000, "'" + "\\'" * 20_000, "`\\`" * 20_000, "/*" * 20_000, '"""\'' * 10_000]
)
def test_code_that_never_ends_is_coloured_in_no_time(text: str) -> None:
    for language in ("python", "js", "bash"):
        assert "".join(span.text for span in highlight(text, language, dark=True)) == text


@pytest.mark.parametrize(
    "text",
    [
        "[1]: https://example.org/source",
        "See [1] and [2].\n\n[1]: https://example.org/a\n[2]: https://example.org/b 'source'",
        ">" * 40 + " source",
        "\n".join("  " * level + f"- level{level} source" for level in range(25)),
    ],
)
def test_no_words_of_an_answer_are_left_out(text: str) -> None:
    drawn = "".join(_seen(text, 400)).replace(" ", "")
    for word in re.findall(r"\w+", text):
        assert word in drawn


def test_what_a_terminal_obeys_is_not_written_for_it_by_name() -> None:
    for text in ("real&#13;fake", "[real&#13;fake](https://h)", "| a |\n|-|\n| real&#13;fake |", "real&#12;&#9;fake"):
        drawn = _CODES.sub("", MarkdownRenderer(TextStyle()).markdown(text, 60))
        assert set(drawn) - {"\n"} == {c for c in drawn if c.isprintable()}
        assert "real" in drawn
        assert "fake" in drawn
