"""Format text, numbers and times for display: on one line, without control characters.

Widths are counted in terminal columns, because some characters take two. `format_call` and `show_invisible` are for
text that a user decides on: they omit nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

import msgspec

CELL_COLUMNS_MAX = 48
EXCERPT_COLUMNS_MAX = 60
REFERENCE_CHARS = 8
"""The length of a turn id's prefix that identifies the turn among recent ones."""
_CUT = "..."
_CALL_LINE_CHARS_MAX = 120
_BLANK = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
"""Characters that count as printable and show nothing: fillers, selectors of variants, a blank pattern."""


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


def show_invisible(text: str) -> str:
    """Escape characters that can't be seen or reorder others, such as `\\u202e`; keep line breaks and spaces."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    seen = "".join(c if c == "\n" or c.isprintable() else _escape(c) for c in text)
    return re.sub(_BLANK, lambda found: _escape(found[0]), seen)


def format_call(name: str, arguments: Mapping[str, object]) -> str:
    """Format a whole tool call for an approval request: every argument in full, and nothing invisible.

    A short call is one line. Otherwise each argument has a line of its own, and the lines of a longer text are marked
    with `|`, so that a text can't be mistaken for another argument.
    """
    parts = {_to_json(key): value for key, value in arguments.items()}
    line = f"{name} {{{', '.join(f'{key}: {_to_json(value)}' for key, value in parts.items())}}}"
    has_lines = any(isinstance(value, str) and "\n" in value for value in parts.values())
    if len(line) <= _CALL_LINE_CHARS_MAX and not has_lines:
        return show_invisible(line)
    return show_invisible("\n".join([name, *(_argument_lines(key, value) for key, value in parts.items())]))


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


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _argument_lines(key: str, value: object) -> str:
    if not isinstance(value, str) or "\n" not in value:
        return f"{key}: {_to_json(value)}"
    return "\n".join([f"{key}:", *(f"  | {line}" for line in value.split("\n"))])
