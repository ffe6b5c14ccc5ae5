"""Styled spans and plain text, wrapped to the width of a terminal. Wrapping never drops text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from msgspec import Struct
from prompt_toolkit.utils import get_cwidth

_WORD = re.compile(r"\s*\S+\s*|\s+")
_COLOUR = re.compile(r"[39]\d")


class Span(Struct, frozen=True):
    """Text with one style."""

    text: str
    codes: tuple[str, ...] = ()
    """ANSI codes of colours and weights."""

    def replace(self, text: str) -> Span:
        return Span(text, self.codes)


Line = list[Span]


def width(spans: Iterable[Span]) -> int:
    return sum(get_cwidth(span.text) for span in spans)


def format_line(line: Line, *, colour: bool) -> str:
    """Format a line with ANSI codes, without trailing blanks."""
    texts = [(span.text, _visible_codes(span, colour=colour)) for span in line]
    while texts and not texts[-1][0].rstrip():
        texts.pop()
    if texts:
        texts[-1] = (texts[-1][0].rstrip(), texts[-1][1])
    return "".join(f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text for text, codes in texts)


def _visible_codes(span: Span, *, colour: bool) -> str:
    return ";".join(code for code in span.codes if colour or not _COLOUR.fullmatch(code))


def wrap_spans(spans: Sequence[Span], columns: int) -> list[Line]:
    """Wrap at word boundaries; split a word that is longer than a line. Line ends in the text are kept."""
    return [line for whole in _lines(spans) for line in _wrap(whole, max(columns, 1))]


def _lines(spans: Sequence[Span]) -> list[Line]:
    lines: list[Line] = [[]]
    for span in spans:
        first, *more = span.text.split("\n")
        lines[-1].append(span.replace(first))
        lines += [[span.replace(text)] for text in more]
    return lines


def _wrap(line: Line, columns: int) -> list[Line]:
    return [line] if width(line) <= columns else _cut(line, _ends("".join(span.text for span in line), columns))


def _ends(text: str, columns: int) -> list[int]:
    """Return the positions of all line ends except the last."""
    ends: list[int] = []
    at = 0
    for match in _WORD.finditer(text):
        word = match[0]
        if at + get_cwidth(word.rstrip()) <= columns:
            at += get_cwidth(word)
            continue
        if at:
            ends.append(match.start())
            at = 0
        for position, character in enumerate(word, match.start()):
            wide = get_cwidth(character)
            if at and at + wide > columns and not character.isspace():
                ends.append(position)
                at = 0
            at += wide
    return ends


def _cut(line: Line, ends: list[int]) -> list[Line]:
    lines: list[Line] = [[]]
    begins, coming = 0, iter([*ends, -1])
    end = next(coming)
    for span in line:
        done = 0
        while begins + done <= end < begins + len(span.text):
            lines[-1].append(span.replace(span.text[done : end - begins]))
            lines.append([])
            done, end = end - begins, next(coming)
        lines[-1].append(span.replace(span.text[done:]))
        begins += len(span.text)
    return lines


# A name, a gap and a description, as in a list of commands.
_TWO_COLUMNS = re.compile(r"\s*\S.*?\s{2,}(?=\S)")


def wrap_text(text: str, columns: int) -> str:
    return "\n".join(line for long in text.split("\n") for line in _wrap_line(long, columns))


def wrap_exactly(text: str, columns: int) -> str:
    """Cut lines at the width of the terminal. Unlike `wrap_text`, keep every space, as in a call to approve."""
    return "\n".join(row for line in text.split("\n") for row in _rows(line, max(columns - 1, 10)))


def _rows(line: str, columns: int) -> list[str]:
    rows, used = [""], 0
    for char in line:
        wide = get_cwidth(char)
        if used + wide > columns:
            rows.append("")
            used = 0
        rows[-1] += char
        used += wide
    return rows


def _wrap_line(line: str, columns: int) -> list[str]:
    if len(line) < columns:
        return [line]
    indent = " " * _indent(line, columns)
    return textwrap.wrap(line, max(columns - 1, 10), subsequent_indent=indent, break_on_hyphens=False) or [line]


def _indent(line: str, columns: int) -> int:
    """Return the indent of continuation rows: the second column if it is in the left half, else a hanging indent."""
    begins = len(line) - len(line.lstrip())
    gap = _TWO_COLUMNS.match(line)
    if gap is None:
        return min(begins, columns // 2)
    return gap.end() if gap.end() <= columns // 2 else min(begins + 2, columns // 2)
