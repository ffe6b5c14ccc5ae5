"""What people and programs are shown: plain tables, one-line texts, times, JSON.

How far something long has come: a bar on stderr, on a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import click

from everthread.domain.text_format import columns_of, one_line, shortened
from everthread.domain.text_format import counted as counted
from everthread.domain.text_format import local_time as local_time

CUT_COLUMNS_MIN = 10


# Nothing a model or a tool writes may move the cursor or speak to the terminal.
_UNSHOWN = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


def shown(text: str) -> str:
    return text.translate(_UNSHOWN)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; the last one is left ragged. On a terminal they are cut to fit into its
    lines: in a pipe, whatever reads it gets all there is."""
    lines = [headings, *([one_line(cell) for cell in row] for row in rows)]
    widths = fitting([max(columns_of(line[place]) for line in lines) for place in range(len(headings))], _room())
    return "\n".join(
        "  ".join(_filled(cell, width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines
    )


def fitting(widths: Sequence[int], room: int | None) -> list[int]:
    """The widths, with as much taken away as is missing: from the last first, which is left out if hardly anything
    remains of it, then from the widest each time. The first stays: it is what people name a thing by."""
    left = list(widths)
    if room is None or (over := _taken_by(left) - room) <= 0:
        return left
    if left[-1] - over >= CUT_COLUMNS_MIN:
        return [*left[:-1], left[-1] - over]
    del left[-1]
    while _taken_by(left) > room and max(left[1:], default=0) > CUT_COLUMNS_MIN:
        left[max(range(1, len(left)), key=left.__getitem__)] -= 1
    return left


def _taken_by(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _filled(cell: str, width: int) -> str:
    cut = cell if columns_of(cell) <= width else shortened(cell, width)
    return cut + " " * (width - columns_of(cut))


def _room() -> int | None:
    import os
    import sys

    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def iso_time(at: float | None) -> str | None:
    from datetime import UTC, datetime

    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(value: object) -> str:
    import json

    return json.dumps(value, indent=2)


def print_json(value: object) -> None:
    click.echo(as_json(value))


Advance = Callable[[int], None]
_WIDTH = 25


@contextmanager
def bar(label: str, whole: int) -> Generator[Advance]:
    """Hands out a function that is told how much more is done."""
    if not sys.stderr.isatty() or whole <= 0:
        yield lambda _: None
        return
    done, shown = 0, -1

    def advance(more: int) -> None:
        nonlocal done, shown
        done += more
        percent = min(100 * done // whole, 100)
        if percent != shown:
            shown = percent
            click.echo(f"\r{label} [{'#' * (percent * _WIDTH // 100):-<{_WIDTH}}] {percent} %", nl=False, err=True)

    advance(0)
    try:
        yield advance
    finally:
        click.echo(err=True)
