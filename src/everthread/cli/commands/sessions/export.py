"""`everthread sessions export`: conversations as a file that can be read, kept and imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation

_OBEYED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class Written(NamedTuple):
    sessions: int
    turns: int
    notes: int


@click.command("export")
@click.argument("names", metavar="[ID|TITLE]...", nargs=-1, shell_complete=completing.sessions)
@click.option("--all", "everything", is_flag=True, help="Every session of every owner.")
@click.option("-o", "--output", metavar="FILE", help="Write to this new file instead of the standard output.")
@click.option("--notes", "with_notes", is_flag=True, help="The notes of the sessions' owners too.")
@json_option
@home_option
@pass_invocation
def export_sessions(
    invocation: CliContext,
    names: tuple[str, ...],
    everything: bool,
    output: str | None,
    with_notes: bool,
    as_json: bool,
) -> None:
    """Write sessions as lines of JSON, with the ones they grew out of as far as they show them.

    The file holds what was said, so only you may read it. What memory providers keep is not in it, nor are settings.

    \b
    Examples:
      everthread sessions export "Trip to Lisbon" -o lisbon.jsonl
      everthread sessions export --all --notes -o everything.jsonl
      everthread sessions export 01JZ8Q4T | jq -r 'select(.type == "turn") | .messages[].content'
    """
    if bool(names) == everything:
        raise click.UsageError("Name the sessions to export, or give --all")
    if "" in names:
        raise click.UsageError("A name is empty; give an id or a title")

    async def export(runtime: CliRuntime) -> Written:
        if output is None:
            binary = sys.stdout.buffer
            shown = for_a_terminal if sys.stdout.isatty() else bytes
            return await write_lines(runtime, names, with_notes, lambda line: binary.write(shown(line)))
        from everthread.cli.files import written_whole

        with written_whole(output) as file:
            return await write_lines(runtime, names, with_notes, file.write)

    done = invocation.look(export, nothing=None)
    if done is None:
        from everthread.domain.errors import NotFound

        raise NotFound(f"nothing is kept in {invocation.settings.home} yet; give another place with --home")
    if as_json and output is not None:
        show.print_json({"file": output, "sessions": done.sessions, "turns": done.turns, "notes": done.notes})
    elif output is not None:
        click.echo(f"Exported {show.counted(done.sessions, 'session')} with {show.counted(done.turns, 'turn')}.")


def for_a_terminal(line: bytes) -> bytes:
    """The same JSON without characters that some terminals obey; those below the space are escaped in any JSON."""
    return line.decode().translate(_OBEYED).encode()


async def write_lines(
    runtime: CliRuntime, names: Sequence[str], with_notes: bool, write: Callable[[bytes], object]
) -> Written:
    """Write the whole file, line by line; no names are all sessions."""
    from importlib.metadata import version

    from everthread.cli.output import bar
    from everthread.domain.export_format import EndLine, SessionLine, written
    from everthread.lifecycle import export
    from everthread.lifecycle.export import write_out

    sessions = await runtime.store.read(lambda uow: export.chosen(uow, names))
    done = Written(0, 0, 0)
    with bar("Exporting", len(sessions)) as advance:
        async for line in write_out(
            runtime.store, sessions, runtime.clock.now(), version("everthread"), with_notes=with_notes
        ):
            write(written(line))
            if isinstance(line, SessionLine):
                advance(1)
            elif isinstance(line, EndLine):
                done = Written(line.sessions, line.turns, line.notes)
    return done
