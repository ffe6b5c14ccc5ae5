"""How texts, numbers and times are written for people: on one line, with nothing that could move a cursor.

Room is counted in columns of a terminal, since some scripts' characters take two.
"""

from __future__ import annotations

import unicodedata

CELL_COLUMNS_MAX = 48
EXCERPT_COLUMNS_MAX = 60
REFERENCE_CHARS = 8
"""So much of a turn's id tells it from the others of its time."""
_CALL_COLUMNS_MAX = 2_000
_CUT = "..."


def one_line(text: str) -> str:
    """The text with nothing in it that could move a cursor or start a second line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def columns_of(text: str) -> int:
    """How many columns of a terminal the text takes: some scripts' characters take two, marks none."""
    return len(text) if text.isascii() else sum(map(_width, text))


def shortened(text: str, columns_max: int = CELL_COLUMNS_MAX) -> str:
    """The beginning of a text, on one line."""
    # A message may be megabytes long; what is beyond this can't be shown anyway.
    start = text[: 4 * columns_max]
    line = one_line(start)
    if len(start) == len(text) and columns_of(line) <= columns_max:
        return line
    return _beginning(line, columns_max - len(_CUT)).rstrip() + _CUT


def excerpt(text: str, columns_max: int = EXCERPT_COLUMNS_MAX) -> str:
    """The beginning of a text in quotes, on one line."""
    return f'"{shortened(text, columns_max)}"'


def call_in_words(name: str, arguments: str) -> str:
    """A tool's call as somebody is asked about it: as much as can be read, and how much there is beyond that."""
    text = shortened(arguments, _CALL_COLUMNS_MAX)
    is_cut = len(arguments) > _CALL_COLUMNS_MAX or columns_of(arguments) > _CALL_COLUMNS_MAX
    more = f" [{len(arguments)} characters in all]" if is_cut else ""
    return f"{name} {text}{more}"


def to_a_guest(plain: str, reference: str) -> str:
    """What went wrong inside, for somebody who does not run this: the log has the rest, under the reference."""
    return f"{plain} Whoever runs this finds more in the log, under {reference}."


def counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def local_time(at: float) -> str:
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
