"""Format text, numbers and times for display: on one line, without control characters.

Widths are counted in terminal columns, because some characters take two.
"""

from __future__ import annotations

import unicodedata

CELL_COLUMNS_MAX = 48
EXCERPT_COLUMNS_MAX = 60
REFERENCE_CHARS = 8
"""The length of a turn id's prefix that identifies the turn among recent ones."""
_CALL_COLUMNS_MAX = 2_000
_CUT = "..."


def one_line(text: str) -> str:
    """Return the text on one line, without characters that could move the cursor."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def display_width(text: str) -> int:
    """Return the width of the text in terminal columns: wide characters take two, combining marks none."""
    return len(text) if text.isascii() else sum(map(_width, text))


def shorten(text: str, columns_max: int = CELL_COLUMNS_MAX) -> str:
    """Return the beginning of a text, on one line."""
    # A message may have megabytes, and the rest would not be shown.
    start = text[: 4 * columns_max]
    line = one_line(start)
    if len(start) == len(text) and display_width(line) <= columns_max:
        return line
    return _beginning(line, columns_max - len(_CUT)).rstrip() + _CUT


def quote_start(text: str, columns_max: int = EXCERPT_COLUMNS_MAX) -> str:
    """Return the beginning of a text in quotes, on one line."""
    return f'"{shorten(text, columns_max)}"'


def format_call(name: str, arguments: str) -> str:
    """Format a tool call for an approval request: the shortened arguments, and their full length if they were cut."""
    text = shorten(arguments, _CALL_COLUMNS_MAX)
    is_cut = len(arguments) > _CALL_COLUMNS_MAX or display_width(arguments) > _CALL_COLUMNS_MAX
    more = f" [{len(arguments)} characters in all]" if is_cut else ""
    return f"{name} {text}{more}"


def guest_error(plain: str, reference: str) -> str:
    """Return an error message for a guest, with the reference under which the operator finds details in the log."""
    return f"{plain} The operator finds details in the log under {reference}."


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return the number with the noun in singular or plural."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def local_time(at: float) -> str:
    """Format an instant in the local time zone, as `2026-11-23 08:00`."""
    from datetime import UTC, datetime  # noqa: PLC0415 - only some answers need it

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _beginning(line: str, columns: int) -> str:
    for place, char in enumerate(line):
        columns -= _width(char)
        if columns < 0:
            return line[:place]
    return line


def _width(char: str) -> int:
    return 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
