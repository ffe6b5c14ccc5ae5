"""Plain text in a terminal: no word is cut at the edge, and what is indented stays so."""

from __future__ import annotations

import textwrap


def wrapped(text: str, columns: int) -> str:
    return "\n".join(line for long in text.split("\n") for line in _fitting(long, columns))


def _fitting(line: str, columns: int) -> list[str]:
    if len(line) < columns:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()), columns // 2)
    return textwrap.wrap(line, max(columns - 1, 10), subsequent_indent=indent, break_on_hyphens=False) or [line]
