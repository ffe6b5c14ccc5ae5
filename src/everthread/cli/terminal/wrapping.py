"""Plain text in a terminal: no word is cut at the edge, and what is indented stays so."""

from __future__ import annotations

import re
import textwrap

# Something, a gap, and what is said of it: as in a list of commands.
_TWO_COLUMNS = re.compile(r"\s*\S.*?\s{2,}(?=\S)")


def wrapped(text: str, columns: int) -> str:
    return "\n".join(line for long in text.split("\n") for line in _fitting(long, columns))


def _fitting(line: str, columns: int) -> list[str]:
    if len(line) < columns:
        return [line]
    indent = " " * _indent(line, columns)
    return textwrap.wrap(line, max(columns - 1, 10), subsequent_indent=indent, break_on_hyphens=False) or [line]


def _indent(line: str, columns: int) -> int:
    """Where its next rows begin: below its second column if there is room for that, else a little behind its first."""
    begins = len(line) - len(line.lstrip())
    gap = _TWO_COLUMNS.match(line)
    if gap is None:
        return min(begins, columns // 2)
    return gap.end() if gap.end() <= columns // 2 else min(begins + 2, columns // 2)
