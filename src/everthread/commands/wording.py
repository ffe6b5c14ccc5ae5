"""How commands write texts, numbers and times, on one line each and with nothing that could move a cursor."""

from __future__ import annotations

EXCERPT_CHARS_MAX = 60


def one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, chars_max: int) -> str:
    """The beginning of a text, on one line."""
    # A message may be megabytes long; what is beyond this can't be shown anyway.
    start = text[: 4 * chars_max]
    line = one_line(start)
    if len(line) > chars_max or len(start) < len(text):
        line = line[: chars_max - 3].rstrip() + "..."
    return line


def excerpt(text: str, chars_max: int = EXCERPT_CHARS_MAX) -> str:
    """The beginning of a text in quotes, on one line."""
    return f'"{shortened(text, chars_max)}"'


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def local_time(at: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 - only some answers need it

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
