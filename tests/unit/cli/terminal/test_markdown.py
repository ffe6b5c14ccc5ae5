"""Markdown rendered for a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from everthread.cli.terminal.markdown import MarkdownRenderer
from everthread.cli.terminal.styles import TextStyle

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


def _render(text: str, columns: int = 60) -> list[str]:
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
def test_each_kind_of_block_is_rendered(text: str, rows: list[str]) -> None:
    assert _render(text) == rows


def test_an_image_keeps_its_position_in_the_text() -> None:
    rows = _render(f"{'word ' * 11}![pic](a.png) and more", 60)
    assert " ".join(rows).split() == [*["word"] * 11, "pic", "(a.png)", "and", "more"]


@given(_MARKDOWN, st.integers(12, 100))
def test_no_row_is_too_wide_and_no_character_is_lost(text: str, columns: int) -> None:
    rows = _render(text, columns)
    # Nested blocks have at least ten columns, and lists here are two deep.
    assert all(get_cwidth(row) <= max(columns, 30) for row in rows)
    for letter in "日本語":
        assert "".join(rows).count(letter) == text.count(letter) or "|x|" in text


def test_bold_and_italic_remain_without_colours() -> None:
    text = "**bold** `code`\n\n```python\nreturn 1\n```"
    coloured, plain = (
        MarkdownRenderer(TextStyle()).markdown(text, 60),
        MarkdownRenderer(TextStyle(colour=False)).markdown(text, 60),
    )
    assert set(re.findall(r"\x1b\[([0-9;]+)m", plain)) == {"1", "0"}
    assert {"36", "94"} <= set(re.findall(r"\x1b\[([0-9;]+)m", coloured))
    assert _CODES.sub("", plain) == _CODES.sub("", coloured)


@pytest.mark.parametrize("text", ["`code`", "- item", "1. item"])
def test_accents_are_dark_on_a_light_background(text: str) -> None:
    dark, light = (MarkdownRenderer(TextStyle(dark=dark)).markdown(text, 60) for dark in (True, False))
    assert "\x1b[36m" in dark
    assert "\x1b[34m" in light
    assert "\x1b[36m" not in light


@pytest.mark.parametrize(
    "text",
    [
        "[1]: https://example.org/source",
        "See [1] and [2].\n\n[1]: https://example.org/a\n[2]: https://example.org/b 'source'",
        ">" * 40 + " source",
        "\n".join("  " * level + f"- level{level} source" for level in range(25)),
    ],
)
def test_no_word_of_an_answer_is_lost(text: str) -> None:
    rendered = "".join(_render(text, 400)).replace(" ", "")
    for word in re.findall(r"\w+", text):
        assert word in rendered


def test_entities_of_control_characters_are_removed() -> None:
    for text in ("real&#13;fake", "[real&#13;fake](https://h)", "| a |\n|-|\n| real&#13;fake |", "real&#12;&#9;fake"):
        rendered = _CODES.sub("", MarkdownRenderer(TextStyle()).markdown(text, 60))
        assert set(rendered) - {"\n"} == {c for c in rendered if c.isprintable()}
        assert "real" in rendered
        assert "fake" in rendered
