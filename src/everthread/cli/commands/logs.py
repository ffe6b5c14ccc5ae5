"""`everthread logs`: show the log file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click

from everthread.cli.context import CliContext, home_option, pass_cli
from everthread.domain.text_format import one_line

POLL_S = 0.25
_CHUNK = 65_536
_LINE_BYTES_MAX = 1_000_000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Wait for new lines, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    metavar="N",
    type=click.IntRange(0, 1_000_000),
    default=20,
    show_default=True,
    help="Lines to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a JSON object on its own line.")
@home_option
@pass_cli
def logs(cli: CliContext, follow: bool, lines: int, as_json: bool) -> None:
    """Show the log: boundaries, turns and errors.

    The file is logs/everthread.log in the home. It contains no secrets.

    \b
    Examples:
      everthread logs
      everthread logs -f
      everthread logs -n 1000 --json | jq 'select(.level == "error")'
    """
    from everthread.log_file import log_path

    file = log_path(cli.home_paths.home)
    if not file.exists() and not follow:
        click.echo(f"No log yet in {file.parent}.", err=True)
        return
    # Open for following first, so that a line written meanwhile is shown once.
    new_lines = _follow(file) if follow else iter(())
    for line in last_lines(file, lines):
        _print(line, as_json)
    for line in new_lines:
        _print(line, as_json)


def last_lines(file: Path, count: int) -> list[bytes]:
    """Return the last lines of the log, including rotated files if needed."""
    from everthread.log_file import ROTATED_MAX

    found: list[bytes] = []
    for path in (file, *(file.with_name(f"{file.name}.{number}") for number in range(1, ROTATED_MAX + 1))):
        if len(found) < count and path.exists():
            found = [*_tail(path, count - len(found)), *found]
    return found


def format_entry(entry: dict[str, Any]) -> str:
    """Format a log entry as one line."""
    turn = entry.get("turn") or entry.get("turn_id")
    parts = [f"session {entry['session']}" if entry.get("session") else "", f"turn {turn}" if turn else ""]
    where = ", ".join(part for part in parts if part)
    trace = str(entry.get("error") or "").strip().splitlines()
    why = f": {trace[-1]}" if trace else ""
    name = str(entry.get("logger", "")).removeprefix("everthread.")
    level = str(entry.get("level", "")).upper()
    text = f"{entry.get('text', '')}{why}{f' ({where})' if where else ''}"
    return one_line(f"{_local(str(entry.get('at', '')))}  {level}  {name}: {text}")


def _local(at: str) -> str:
    from datetime import datetime

    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at


def _print(line: bytes, as_json: bool) -> None:
    import json

    text = line.decode(errors="replace")
    try:
        entry: object = json.loads(text)
    except ValueError:
        # The line was cut off by a crash.
        return
    if isinstance(entry, dict):
        click.echo(json.dumps(entry) if as_json else format_entry(cast("dict[str, Any]", entry)))


def _tail(path: Path, count: int) -> list[bytes]:
    """Return the last lines without reading the whole file."""
    with path.open("rb") as file:
        start = file.seek(0, 2)
        content = b""
        while start > 0 and content.count(b"\n") <= count:
            size = min(_CHUNK, start)
            start = file.seek(start - size)
            content = file.read(size) + content
    lines = content.split(b"\n")[:-1]
    return lines[-count:] if count else []


def _follow(path: Path) -> Iterator[bytes]:
    """Yield new lines, also after the log was rotated."""
    import os
    import time

    file = path.open("rb") if path.exists() else None
    if file is not None:
        file.seek(0, 2)

    def follow() -> Iterator[bytes]:
        nonlocal file
        partial = b""
        while True:
            piece = file.read(_CHUNK) if file is not None else b""
            if piece:
                *whole, partial = (partial + piece).split(b"\n")
                partial = partial[-_LINE_BYTES_MAX:]
                yield from whole
                continue
            if path.exists() and (file is None or not os.path.samestat(os.fstat(file.fileno()), path.stat())):
                file, partial = path.open("rb"), b""
                continue
            time.sleep(POLL_S)

    return follow()
