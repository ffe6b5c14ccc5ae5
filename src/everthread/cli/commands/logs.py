"""`everthread logs`: what happened in conversations, from the log file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, pass_invocation

FOLLOW_S = 0.25
_CHUNK = 65_536
_LINE_BYTES_MAX = 1_000_000


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--lines", metavar="N", type=click.IntRange(0, 1_000_000), default=20, show_default=True, help="How many."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each as a JSON object on a line of its own; no line if there is none.",
)
@home_option
@pass_invocation
def logs(invocation: CliContext, follow: bool, lines: int, as_json: bool) -> None:
    """Show the last lines of the log that conversations keep: boundaries, turns, and what went wrong.

    It is logs/everthread.log in the home. Secrets are not in it.

    \b
    Examples:
      everthread logs
      everthread logs -f
      everthread logs -n 1000 --json | jq 'select(.level == "error")'
    """
    from everthread.config.settings import places
    from everthread.log_file import path_in

    file = path_in(places(invocation.home).home)
    if not file.exists() and not follow:
        click.echo(f"Nothing is logged yet in {file.parent}.", err=True)
        return
    # Where to go on is looked up before: what comes meanwhile is shown once.
    following = _following(file) if follow else iter(())
    for line in last_lines(file, lines):
        _show(line, as_json)
    for line in following:
        _show(line, as_json)


def last_lines(file: Path, count: int) -> list[bytes]:
    """The last lines of the log, of older files too if this one has fewer."""
    from everthread.log_file import KEPT

    found: list[bytes] = []
    for path in (file, *(file.with_name(f"{file.name}.{number}") for number in range(1, KEPT + 1))):
        if len(found) < count and path.exists():
            found = [*_tail(path, count - len(found)), *found]
    return found


def in_words(entry: dict[str, Any]) -> str:
    """An entry on one line."""
    turn = entry.get("turn") or entry.get("turn_id")
    places = [f"session {entry['session']}" if entry.get("session") else "", f"turn {turn}" if turn else ""]
    where = ", ".join(place for place in places if place)
    trace = str(entry.get("error") or "").strip().splitlines()
    why = f": {trace[-1]}" if trace else ""
    name = str(entry.get("logger", "")).removeprefix("everthread.")
    level = str(entry.get("level", "")).upper()
    text = f"{entry.get('text', '')}{why}{f' ({where})' if where else ''}"
    return show.one_line(f"{_local(str(entry.get('at', '')))}  {level}  {name}: {text}")


def _local(at: str) -> str:
    from datetime import datetime

    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return at


def _show(line: bytes, as_json: bool) -> None:
    import json

    text = line.decode(errors="replace")
    try:
        entry: object = json.loads(text)
    except ValueError:
        # A line that was cut off when the machine went down.
        return
    if isinstance(entry, dict):
        click.echo(json.dumps(entry) if as_json else in_words(cast("dict[str, Any]", entry)))


def _tail(path: Path, count: int) -> list[bytes]:
    """The last lines, without reading all of the file."""
    with path.open("rb") as file:
        start = file.seek(0, 2)
        content = b""
        while start > 0 and content.count(b"\n") <= count:
            size = min(_CHUNK, start)
            start = file.seek(start - size)
            content = file.read(size) + content
    lines = content.split(b"\n")[:-1]
    return lines[-count:] if count else []


def _following(path: Path) -> Iterator[bytes]:
    """Lines as they come, also after the file was begun anew."""
    import os
    import time

    file = path.open("rb") if path.exists() else None
    if file is not None:
        file.seek(0, 2)

    def come() -> Iterator[bytes]:
        nonlocal file
        begun = b""
        while True:
            piece = file.read(_CHUNK) if file is not None else b""
            if piece:
                *whole, begun = (begun + piece).split(b"\n")
                begun = begun[-_LINE_BYTES_MAX:]
                yield from whole
                continue
            if path.exists() and (file is None or not os.path.samestat(os.fstat(file.fileno()), path.stat())):
                file, begun = path.open("rb"), b""
                continue
            time.sleep(FOLLOW_S)

    return come()
