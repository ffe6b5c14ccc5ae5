"""`everthread memory`: the curated notes and the status of memory providers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.commands.memory.bridge import bridge
from everthread.cli.commands.memory.copy import copy
from everthread.cli.context import CliContext, CliRuntime, common_options, list_options
from everthread.cli.output import Result, iso_time, render, table
from everthread.cli.shell_complete import complete_notes, complete_sessions
from everthread.domain.errors import BadInput
from everthread.domain.text_format import local_time, one_line, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everthread.commands.note_history import Edit, NoteEdit, NoteHistory
    from everthread.config.schema import MemorySettings
    from everthread.domain.model import NoteTarget, NoteVersion

_TEXT_CHARS_MAX = 200


@click.group()
def memory() -> None:
    """Manage notes and memory providers. Notes are part of every prompt.

    \b
    Examples:
      everthread memory list
      everthread memory edit user
      everthread memory log --limit 5
      everthread memory undo
      everthread memory forget "green tea"
      everthread memory status
      everthread memory copy --to hindsight
      everthread memory bridge list
    """


memory.add_command(copy)
memory.add_command(bridge)


@memory.command("list")
@common_options
def list_notes(cli: CliContext, as_json: bool) -> None:
    """List notes with their ids and the size of each file.

    \b
    Examples:
      everthread memory list
      everthread memory list --json | jq -r '.memory.notes[].text'
    """
    from everthread.commands.memory import format_fullness

    collections = _collections(cli.write_if_exists(_read_notes, default=[]), cli.settings.memory)

    def text() -> Iterator[str]:
        for target, notes, room in collections:
            yield format_fullness(target, notes, room)
            yield from (f"  {note.note_id}  {shorten(note.content, _TEXT_CHARS_MAX)}" for note in notes)

    render(Result({t.value: _collection(t, notes, room) for t, notes, room in collections}, text), as_json)


@memory.command("show")
@click.argument("note", shell_complete=complete_notes)
@common_options
def show_note(cli: CliContext, note: str, as_json: bool) -> None:
    """Show a NOTE (id, prefix of an id, or part of its text) with all versions, newest first.

    \b
    Examples:
      everthread memory show 01JZ8Q7M3N5P6R8S9T0V1W2X3Y
      everthread memory show "green tea" --json
    """
    changes = cli.write(lambda runtime: _note_versions(runtime, note))
    last = changes[0].version
    is_live = last.action.value != "remove"

    def text() -> Iterator[str]:
        yield f"{last.note_id} in {last.target.name}.md{'' if is_live else ', removed'}"
        for change in changes:
            yield f"\n{_headline(change)}"
            content = change.version.content if change.version.action.value != "remove" else "(removed)"
            yield "\n".join(f"  {one_line(line)}" for line in content.splitlines())

    versions = [_change_as_json(change) for change in changes]
    data = {"id": last.note_id, "target": last.target.value, "live": is_live, "versions": versions}
    render(Result(data, text), as_json)


@memory.command()
@list_options
def log(cli: CliContext, as_json: bool, limit: int) -> None:
    """Show changes of notes and skills: what, when, by whom, and in which turns.

    \b
    Examples:
      everthread memory log
      everthread memory log --limit 100 --json
    """

    async def read(runtime: CliRuntime) -> list[Edit]:
        return await (await _curator(runtime)).log(limit)

    changes = cli.write_if_exists(read, default=[])

    def text() -> Iterator[str]:
        for change in changes:
            yield _headline(change)
            yield f"  {shorten(change.words, _TEXT_CHARS_MAX)}"
        if not changes:
            yield f"No notes yet in {cli.settings.home}."

    render(Result([_change_as_json(change) for change in changes], text), as_json)


@memory.command()
@click.argument("change", default="")
@common_options
def undo(cli: CliContext, change: str, as_json: bool) -> None:
    """Undo the newest change of notes and skills, or CHANGE as listed by `memory log`.

    Undoing writes a new version, so it can be undone too.

    \b
    Examples:
      everthread memory undo
      everthread memory undo 01JZ8Q7M3N5P6R8S9T0V1W2X3Y:2
      everthread memory undo skill/release-notes:1
    """
    from everthread.commands.memory import format_undo

    async def work(runtime: CliRuntime) -> tuple[Edit, Edit]:
        curator = await _curator(runtime)
        done = await curator.undo(change)
        _warn(await curator.sync())
        return done

    old, new = cli.write(work)
    data = {
        "undone": old.name,
        "version": new.name,
        "text": (new.words if new.action.value != "remove" else None) or None,
    }
    text = f"{one_line(format_undo(old, new))} Run `everthread memory undo` again to redo it."
    render(Result(data, text), as_json)


@memory.command()
@click.argument("target", type=click.Choice(["memory", "user"]), default="memory")
@common_options
def edit(cli: CliContext, target: str, as_json: bool) -> None:
    """Edit MEMORY.md or USER.md in $VISUAL or $EDITOR, and show the changes.

    A line with only § separates notes.

    \b
    Examples:
      everthread memory edit
      EDITOR=nano everthread memory edit user
    """
    from everthread.cli.editor import edit_in_place
    from everthread.domain.model import NoteTarget

    async def before(runtime: CliRuntime) -> Any:
        curator = await _curator(runtime)
        return runtime.note_files.path(curator.owner, NoteTarget(target)), await _versions(curator)

    async def after(runtime: CliRuntime) -> list[NoteEdit]:
        await runtime.start()
        curator = await _curator(runtime, strict=True)
        changed = [c for c in await curator.note_log() if c.version.version > known.get(c.version.note_id, 0)]
        await runtime.drain()
        return changed

    file, known = cli.open_home(before)
    edit_in_place(file)
    changes = cli.open_home(after)
    changes.reverse()
    data = {"file": str(file), "changes": [_change_as_json(change) for change in changes]}
    lines = [f"{change.version.action.value:<7}  {shorten(change.words, _TEXT_CHARS_MAX)}" for change in changes]
    render(Result(data, lines or "No changes."), as_json)


@memory.command()
@click.argument("note", shell_complete=complete_notes)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def forget(cli: CliContext, note: str, yes: bool, as_json: bool) -> None:
    """Forget a NOTE (id, or part of its text) and its text wherever it was copied to. This can't be undone.

    Same as `everthread forget --note ID`. To only remove a note from the prompt, use `everthread memory edit`.

    \b
    Examples:
      everthread memory forget "green tea"
      everthread memory forget 01JZ8Q7M3N5P6R8S9T0V1W2X3Y --yes
    """
    from everthread.cli.commands.forget import forget_it

    newest = cli.write(lambda runtime: _note_versions(runtime, note))[0]
    forget_it(cli, note=newest.version.note_id, yes=yes, as_json=as_json)


@memory.command()
@common_options
def status(cli: CliContext, as_json: bool) -> None:
    """Show the status of memory providers and the size of the notes.

    WAITING entries are delivered automatically. PARKED entries were rejected by the provider; `everthread memory retry`
    delivers them again. STATE shows until when an unavailable provider is paused. The exit code is 1 while entries are
    parked or a provider is unhealthy.

    \b
    Examples:
      everthread memory status
      everthread memory status --json | jq '.providers[] | select(.parked > 0)'
    """
    from everthread.cli.commands.journal import parked_lines
    from everthread.cli.commands.memory.status import PARKED_MAX, providers, rows, unused_providers
    from everthread.commands.memory import format_fullness

    async def read(runtime: CliRuntime) -> tuple[list[dict[str, Any]], list[NoteVersion]]:
        return await providers(runtime), await _curator_of(runtime).notes()

    found, notes = cli.read(read, default=(unused_providers(cli.settings.memory.providers), []))
    collections = _collections(notes, cli.settings.memory)

    def data() -> dict[str, Any]:
        sizes = {target.value: _collection(target, notes, room) for target, notes, room in collections}
        for size in sizes.values():
            del size["notes"]
        return {"providers": found, "notes": sizes}

    def text() -> Iterator[str]:
        yield table(("PROVIDER", "WAITING", "PARKED", "STATE", "HEALTH", "LAST ERROR"), rows(found))
        for target, notes, room in collections:
            yield format_fullness(target, notes, room)
        parked = [(provider["provider"], entry) for provider in found for entry in provider["parked_entries"]]
        yield from parked_lines(parked, PARKED_MAX)

    ok = not any(provider["parked"] or provider["health"] not in (None, "ok") for provider in found)
    render(Result(data, text), as_json, ok=ok)


@memory.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=complete_sessions)
@common_options
def retry(cli: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Deliver parked entries to PROVIDER again, of one SESSION (id, prefix of an id, or title) or of all.

    Same as `everthread journal retry`. Entries waiting for an unavailable provider are retried automatically.

    \b
    Examples:
      everthread memory retry honcho
      everthread memory retry honcho "Trip to Lisbon" --json
    """
    from everthread.cli.commands.journal import retry_parked

    retry_parked(cli, provider, session, as_json=as_json)


async def _curator(runtime: CliRuntime, *, strict: bool = False) -> NoteHistory:
    """Synchronize the note files and return the curator. If `strict`, a failure raises `BadInput`."""
    curator = _curator_of(runtime)
    problem = await curator.sync()
    if problem and strict:
        raise BadInput(problem)
    _warn(problem)
    return curator


def _curator_of(runtime: CliRuntime) -> NoteHistory:
    from everthread.commands.note_history import NoteHistory

    return NoteHistory(runtime, runtime.settings.owner)


def _warn(problem: str) -> None:
    if problem:
        click.echo(one_line(problem), err=True)


async def _read_notes(runtime: CliRuntime) -> list[NoteVersion]:
    return await (await _curator(runtime)).notes()


async def _note_versions(runtime: CliRuntime, note: str) -> list[NoteEdit]:
    return await (await _curator(runtime)).versions(note)


async def _versions(curator: NoteHistory) -> dict[str, int]:
    known: dict[str, int] = {}
    for change in await curator.note_log():
        known[change.version.note_id] = max(change.version.version, known.get(change.version.note_id, 0))
    return known


def _collections(notes: list[NoteVersion], settings: MemorySettings) -> list[tuple[NoteTarget, list[NoteVersion], int]]:
    from everthread.domain.model import NoteTarget

    rooms = {NoteTarget.USER: settings.user_chars, NoteTarget.MEMORY: settings.notes_chars}
    return [(target, [note for note in notes if note.target is target], room) for target, room in rooms.items()]


def _collection(target: NoteTarget, notes: list[NoteVersion], room: int) -> dict[str, Any]:
    return {
        "file": f"{target.name}.md",
        "chars": sum(len(note.content.strip()) for note in notes),
        "chars_max": room,
        "notes": [{"id": n.note_id, "version": n.version, "at": iso_time(n.at), "text": n.content} for n in notes],
    }


def _headline(change: Edit) -> str:
    from everthread.commands.memory import format_author

    return one_line(
        f"{change.name}  {local_time(change.at)}  {change.action.value}  {change.place}  by {format_author(change)}"
    )


def _change_as_json(change: Edit) -> dict[str, Any]:
    from everthread.commands.note_history import NoteEdit

    source, window = change.source, change.source.reviewed
    if isinstance(change, NoteEdit):
        note, edit = change.version, None
        version, target, text, before = note.version, note.target.value, note.content, change.before
    else:
        note, edit = None, change.change
        version, target, text, before = edit.number, "skill", edit.description, edit.before
    return {
        "change": change.name,
        "note": note.note_id if note else None,
        "skill": edit.skill if edit else None,
        "version": version,
        "target": target,
        "action": change.action.value,
        "text": text or None,
        "before": before or None,
        "at": iso_time(change.at),
        "by": "review" if window else "agent" if source.by_agent else "user",
        "session": source.session_id if source.in_conversation else None,
        "title": source.title,
        "turn": source.turn,
        "turns": [window.from_turn, window.to_turn] if window else None,
        "turn_id": source.turn_id,
    }
