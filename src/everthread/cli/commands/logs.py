"""`everthread logs`: show the log file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from everthread.cli.context import CliContext, home_option, pass_cli
from everthread.domain.text_format import one_line

POLL_S = 0.25
_CHUNK = 65_536
_LINE_BYTES_MAX = 1_000_000
_REFERENCE_CHARS_MAX = 64


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
@click.option("--reference", metavar="ID", help="Show the full text of the entry with this reference.")
@click.option("--json", "as_json", is_flag=True, help="Print each entry as a JSON object on its own line.")
@home_option
@pass_cli
def logs(cli: CliContext, follow: bool, lines: int, reference: str | None, as_json: bool) -> None:
    """Show the log: boundaries, turns and errors.

    The file is logs/everthread.log in the home. It contains no secrets and no text of a conversation. An error may
    quote a conversation, so its entry has its type and a reference. The store keeps the message and the traceback,
    until they are 30 days old, or the session or person that they concern is forgotten.

    \b
    Examples:
      everthread logs
      everthread logs -f
      everthread logs --reference 7f3a9c2e
      everthread logs -n 1000 --json | jq 'select(.level == "error")'
    """
    from everthread.log_file import log_path

    if reference is not None:
        _show_details(cli, reference, follow, as_json)
        return
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


def _show_details(cli: CliContext, reference: str, follow: bool, as_json: bool) -> None:
    """Print the full texts of log entries."""
    from everthread.cli.output import iso_time, strip_control_chars
    from everthread.domain.errors import NotFound

    if follow:
        raise click.UsageError("--reference and --follow exclude each other. Leave out one of them.")
    if not 0 < len(reference) <= _REFERENCE_CHARS_MAX:
        raise click.UsageError("The reference is empty or too long. Copy it from everthread logs.")
    found = cli.read(lambda runtime: runtime.store.read(lambda uow: uow.error_details.get(reference)), default=())
    if not found:
        raise NotFound(
            f"nothing is stored under the reference {reference!r}: it is mistyped, older than 30 days, or what it "
            "concerns was forgotten; everthread logs shows the newest references"
        )
    for each in found:
        if as_json:
            import json

            fields = {"session": each.session_id, "owner": each.owner or None, "logger": each.logger, "text": each.text}
            click.echo(json.dumps({"reference": each.reference, "at": iso_time(each.at), **fields}))
            continue
        concerns = (("session", each.session_id), ("owner", each.owner))
        where = ", ".join(f"{kind} {value}" for kind, value in concerns if value) or "no session"
        name = each.logger.removeprefix("everthread.")
        click.echo(one_line(f"{_local(iso_time(each.at) or '')}  {name} ({where})"))
        for line in each.text.splitlines():
            click.echo(f"  {strip_control_chars(line)}")


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
    found: deque[bytes] = deque()
    with path.open("rb") as file:
        # Without the end of the file, if that is no whole line.
        start, rest = _end_of_lines(file), b""
        while start > 0 and len(found) < count:
            size = min(_CHUNK, start)
            start = file.seek(start - size)
            rest, *whole = (file.read(size) + rest).split(b"\n")
            # Lines of spaces were removed by a request to forget.
            found.extendleft(line for line in reversed(whole) if line.strip())
            rest = b"" if not rest.strip() else rest
        if rest and len(found) < count:
            found.appendleft(rest)
    return list(found)[-count:] if count else []


def _end_of_lines(file: BinaryIO) -> int:
    end = file.seek(0, 2)
    while end > 0:
        start = file.seek(max(end - _CHUNK, 0))
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


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
