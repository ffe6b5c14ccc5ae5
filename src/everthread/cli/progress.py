"""How far something long has come: a bar on stderr, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

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
