"""What people and programs are shown: plain tables, one-line texts, times, JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import click

CELL_CHARS_MAX = 48


def one_line(text: str) -> str:
    """The text with nothing in it that could move a cursor or start a second line."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, chars_max: int = CELL_CHARS_MAX) -> str:
    text = one_line(text)
    return text if len(text) <= chars_max else text[: chars_max - 3].rstrip() + "..."


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; the last one is left ragged."""
    lines = [headings, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(columns_of(line[place]) for line in lines) for place in range(len(headings))]
    return "\n".join(
        "  ".join(cell + " " * (width - columns_of(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def local_time(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def iso_time(at: float | None) -> str | None:
    from datetime import UTC, datetime

    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def counted(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def as_json(value: object) -> str:
    import json

    return json.dumps(value, indent=2)


def print_json(value: object) -> None:
    click.echo(as_json(value))


def columns_of(text: str) -> int:
    """How many columns of a terminal the text takes: some scripts' characters take two, marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
