"""Syntax highlighting of code blocks."""

from __future__ import annotations

import pytest

from everthread.cli.terminal.highlight import highlight


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


def test_colours_depend_on_the_background() -> None:
    assert highlight("return", "python", dark=True) != highlight("return", "python", dark=False)


@pytest.mark.parametrize(
    "text", ['\\"' * 20_000, "'" + "\\'" * 20_000, "`\\`" * 20_000, "/*" * 20_000, '"""\'' * 10_000]
)
def test_unterminated_code_is_coloured_without_backtracking(text: str) -> None:
    for language in ("python", "js", "bash"):
        assert "".join(span.text for span in highlight(text, language, dark=True)) == text
