"""`everthread sessions export`: conversations as a file that can be read, kept and imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from everthread.cli import completing, show
from everthread.cli.opened import Invocation, Runtime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.exchange import AnyLine
    from everthread.lifecycle.export import Head

_TURNS_AT_ONCE = 200
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
    invocation: Invocation,
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

    async def export(runtime: Runtime) -> Written:
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
    runtime: Runtime, names: Sequence[str], with_notes: bool, write: Callable[[bytes], object]
) -> Written:
    """Write the whole file, line by line; no names are all sessions."""
    from importlib.metadata import version

    from everthread.cli.progress import bar
    from everthread.domain.exchange import VERSION, EndLine, Header, written
    from everthread.lifecycle import export

    sessions = await runtime.store.read(lambda uow: export.chosen(uow, names))
    count = turns = 0

    def put(line: AnyLine) -> None:
        write(written(line))

    put(Header(VERSION, runtime.clock.now(), version("everthread")))
    included: set[str] = set()
    owners: set[str] = set()
    with bar("Exporting", len(sessions)) as advance:
        for session in sessions:
            before = frozenset(included)
            head = await runtime.store.read(lambda uow, s=session.id, b=before: export.head(uow, s, b))
            advance(1)
            if head is None:  # forgotten meanwhile
                continue
            put(head.line)
            included.add(session.id)
            owners.add(session.owner)
            count += 1
            turns += await _write_turns(runtime, session.id, head, put)
    notes = await runtime.store.read(lambda uow: export.notes(uow, sorted(owners))) if with_notes else []
    for note in notes:
        put(note)
    put(EndLine(count, turns, len(notes)))
    return Written(count, turns, len(notes))


async def _write_turns(runtime: Runtime, session_id: str, head: Head, put: Callable[[AnyLine], None]) -> int:
    from everthread.lifecycle import export

    after = count = 0
    while True:
        some = await runtime.store.read(
            lambda uow, after=after: uow.turns.own(session_id, after=after, up_to=head.last_turn, limit=_TURNS_AT_ONCE)
        )
        last = len(some) < _TURNS_AT_ONCE
        for item in export.items(head, some, after, last=last):
            put(item)
        count += len(some)
        if last:
            return count
        after = some[-1].number
