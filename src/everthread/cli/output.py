"""Print results: `render` for a command's result as text or JSON, plus tables, times and a progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from everthread.cli.exit_codes import REFUSED
from everthread.domain.text_format import display_width, one_line, shorten

CUT_COLUMNS_MIN = 10

# Text from a model or a tool must not move the cursor or send control codes to the terminal.
# Bidirectional overrides reorder the text around them: a file name or a command can look like another one.
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROL_CHARS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)]) | {
    code: f"\\u{code:04x}" for code in _BIDIRECTIONAL
}
JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(127, 160), *_BIDIRECTIONAL)}
"""Replaces what JSON leaves as it is."""

Text = str | Iterable[str]


class Result(NamedTuple):
    """The result of a command. A callable is evaluated only if its form is printed."""

    data: object
    """The value printed with --json, or a function that returns it."""
    text: Text | Callable[[], Text]
    """The text, or its lines, printed without --json."""


def render(result: Result, as_json: bool, *, ok: bool = True) -> None:
    """Print a result as JSON or as text. An empty text prints nothing. If not `ok`, exit with code 1."""
    if as_json:
        print_json(result.data() if callable(result.data) else result.data)
    else:
        text = result.text() if callable(result.text) else result.text
        for line in ([text] if text else []) if isinstance(text, str) else text:
            click.echo(for_terminal(line))
    if not ok:
        raise click.exceptions.Exit(REFUSED)


def confirm(question: str, refusal: str, *, yes: bool, as_json: bool) -> None:
    """Ask for confirmation unless `yes`. If it is refused, print `refusal` and exit with code 1."""
    # With --json, stdout is for the result only.
    if not yes and not click.confirm(question, err=as_json):
        click.echo(refusal, err=as_json)
        raise click.exceptions.Exit(REFUSED)


def to_json(value: object) -> str:
    import json

    return json.dumps(value, indent=2)


def print_json(value: object) -> None:
    click.echo(to_json(value))


def strip_control_chars(text: str) -> str:
    """Remove control characters, except tab and newline, and show bidirectional overrides as escapes."""
    return text.translate(_CONTROL_CHARS)


def for_terminal(text: str) -> str:
    """Return the text as it may be printed on stdout: without control characters on a terminal, unchanged in a pipe."""
    return strip_control_chars(text) if sys.stdout is not None and sys.stdout.isatty() else text


def iso_time(at: float | None) -> str | None:
    from datetime import UTC, datetime

    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> str:
    """Format rows as aligned columns; return `empty` if there are none.

    On a terminal, cells are cut to fit its width. In a pipe, nothing is cut.
    """
    if not rows and empty:
        return empty
    lines = [headings, *([one_line(cell) for cell in row] for row in rows)]
    widths = fit_widths(
        [max(display_width(line[index]) for line in lines) for index in range(len(headings))], terminal_columns()
    )
    return "\n".join(
        "  ".join(_pad(cell, width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines
    )


def fit_widths(widths: Sequence[int], columns: int | None) -> list[int]:
    """Reduce column widths until a row fits.

    The last column is cut first, and dropped if less than `CUT_COLUMNS_MIN` would remain. Then the widest column is
    cut. The first column holds the name or id and is never cut.
    """
    fitted = list(widths)
    if columns is None or (over := _row_columns(fitted) - columns) <= 0:
        return fitted
    if fitted[-1] - over >= CUT_COLUMNS_MIN:
        return [*fitted[:-1], fitted[-1] - over]
    del fitted[-1]
    while _row_columns(fitted) > columns and max(fitted[1:], default=0) > CUT_COLUMNS_MIN:
        fitted[max(range(1, len(fitted)), key=fitted.__getitem__)] -= 1
    return fitted


def _row_columns(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _pad(cell: str, width: int) -> str:
    cut = cell if display_width(cell) <= width else shorten(cell, width)
    return cut + " " * (width - display_width(cut))


def terminal_columns() -> int | None:
    """Return the width of the terminal at stdout; `None` if stdout is no terminal, or the width is unknown."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


Advance = Callable[[int], None]


@contextmanager
def progress_bar(label: str, total: int) -> Generator[Advance]:
    """Show a progress bar on stderr if it is a terminal. Yield a function that adds to the amount done."""
    if not sys.stderr.isatty() or total <= 0:
        yield lambda _: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_eta=False, width=25) as bar:
        yield bar.update
