"""`everthread sessions export`: write sessions as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.files import new_file
from everthread.cli.output import JSON_ESCAPES, Result, progress_bar, render
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.text_format import pluralize


class ExportCounts(NamedTuple):
    sessions: int
    turns: int
    notes: int


@click.command("export")
@click.argument("names", metavar="[ID|TITLE]...", nargs=-1, shell_complete=complete_sessions)
@click.option("--all", "everything", is_flag=True, help="Export every session of every owner.")
@click.option("-o", "--output", metavar="FILE", help="Write to this new file instead of stdout.")
@click.option("--notes", "with_notes", is_flag=True, help="Include the notes of the owners.")
@common_options
def export_sessions(
    cli: CliContext, names: tuple[str, ...], everything: bool, output: str | None, with_notes: bool, as_json: bool
) -> None:
    """Export sessions as JSON lines, with the inherited part of their parents.

    The file is readable for your user only. Data of memory providers and settings are not included.

    \b
    Examples:
      everthread sessions export "Trip to Lisbon" -o lisbon.jsonl
      everthread sessions export --all --notes -o everything.jsonl
      everthread sessions export 01JZ8Q4T | jq -r 'select(.type == "turn") | .messages[].content'
    """
    if bool(names) == everything:
        raise click.UsageError("Give the sessions to export, or --all")
    if "" in names:
        raise click.UsageError("A name is empty. Give an id or a title")

    async def export(runtime: CliRuntime) -> ExportCounts:
        if output is None:
            binary = sys.stdout.buffer
            shown = for_a_terminal if sys.stdout.isatty() else bytes
            return await write_lines(runtime, names, with_notes, lambda line: binary.write(shown(line)))

        with new_file(output) as file:
            return await write_lines(runtime, names, with_notes, file.write)

    done = cli.read_existing(export)
    if output is not None:
        text = f"Exported {pluralize(done.sessions, 'session')} with {pluralize(done.turns, 'turn')}."
        render(Result({"file": output, **done._asdict()}, text), as_json)


def for_a_terminal(line: bytes) -> bytes:
    """Escape C1 control characters and bidirectional overrides. JSON escapes the other control characters itself."""
    return line.decode().translate(JSON_ESCAPES).encode()


async def write_lines(
    runtime: CliRuntime, names: Sequence[str], with_notes: bool, write: Callable[[bytes], object]
) -> ExportCounts:
    """Write the export line by line and return the numbers written. Without names, export all sessions."""
    from importlib.metadata import version

    from everthread.domain.export_format import EndLine, SessionLine, encode_line
    from everthread.lifecycle import export
    from everthread.lifecycle.export import export_lines

    sessions = await runtime.store.read(lambda uow: export.select_sessions(uow, names))
    done = ExportCounts(0, 0, 0)
    with progress_bar("Exporting", len(sessions)) as advance:
        async for line in export_lines(
            runtime.store, sessions, runtime.clock.now(), version("everthread"), with_notes=with_notes
        ):
            write(encode_line(line))
            if isinstance(line, SessionLine):
                advance(1)
            elif isinstance(line, EndLine):
                done = ExportCounts(line.sessions, line.turns, line.notes)
    return done
