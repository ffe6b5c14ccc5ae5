"""What people and programs are shown: plain tables, one-line texts, times, JSON."""

from __future__ import annotations

from collections.abc import Sequence

import click

from everthread.domain.wording import columns_of as columns_of
from everthread.domain.wording import counted as counted
from everthread.domain.wording import local_time as local_time
from everthread.domain.wording import one_line as one_line
from everthread.domain.wording import shortened as shortened


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them; the last one is left ragged."""
    lines = [headings, *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(columns_of(line[place]) for line in lines) for place in range(len(headings))]
    return "\n".join(
        "  ".join(cell + " " * (width - columns_of(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def iso_time(at: float | None) -> str | None:
    from datetime import UTC, datetime

    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(value: object) -> str:
    import json

    return json.dumps(value, indent=2)


def print_json(value: object) -> None:
    click.echo(as_json(value))
