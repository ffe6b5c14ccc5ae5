"""`everthread memory`: the curated notes, and how the providers that are told of everything are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.commands.memory.bridge import bridge
from everthread.cli.commands.memory.copy import copy
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, limit_option, pass_invocation
from everthread.cli.exit_codes import REFUSED

if TYPE_CHECKING:
    from everthread.commands.note_history import AnyChange, Change, Curator
    from everthread.config.settings import Memory
    from everthread.domain.model import NoteTarget, NoteVersion

_WORDS_CHARS_MAX = 200


@click.group()
def memory() -> None:
    """Look after the curated notes, which stand in every prompt, and the memory providers.

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
@json_option
@home_option
@pass_invocation
def list_notes(invocation: CliContext, as_json: bool) -> None:
    """List the notes with their ids, and how full each collection is.

    \b
    Examples:
      everthread memory list
      everthread memory list --json | jq -r '.memory.notes[].text'
    """
    from everthread.commands.memory import fullness

    notes, settings = invocation.tend(_listed, nothing=[]), invocation.settings.memory
    if as_json:
        show.print_json({t.value: _collection(t, of, room) for t, of, room in _collections(notes, settings)})
        return
    for target, of_target, room in _collections(notes, settings):
        click.echo(fullness(target, of_target, room))
        for note in of_target:
            click.echo(f"  {note.note_id}  {show.shortened(note.content, _WORDS_CHARS_MAX)}")


@memory.command("show")
@click.argument("note", shell_complete=completing.notes)
@json_option
@home_option
@pass_invocation
def show_note(invocation: CliContext, note: str, as_json: bool) -> None:
    """Show a NOTE (its id, the beginning of it, or words of it) with all its versions, the newest first.

    \b
    Examples:
      everthread memory show 01JZ8Q7M3N5P6R8S9T0V1W2X3Y
      everthread memory show "green tea" --json
    """

    async def look(runtime: CliRuntime) -> list[Change]:
        return await (await _curator(runtime)).versions(note)

    changes, _ = invocation.act(look)
    last = changes[0].version
    if as_json:
        shown = {"id": last.note_id, "target": last.target.value, "live": last.action.value != "remove"}
        show.print_json(shown | {"versions": [_change_as_json(change) for change in changes]})
        return
    state = "" if last.action.value != "remove" else ", removed"
    click.echo(f"{last.note_id} in {last.target.name}.md{state}")
    for change in changes:
        click.echo(f"\n{_headline(change)}")
        text = change.version.content if change.version.action.value != "remove" else "(removed)"
        click.echo("\n".join(f"  {show.one_line(line)}" for line in text.splitlines()))


@memory.command()
@json_option
@limit_option
@home_option
@pass_invocation
def log(invocation: CliContext, as_json: bool, limit: int) -> None:
    """Show every change of the notes and of your skills: what, when, and who made it in which turns.

    \b
    Examples:
      everthread memory log
      everthread memory log --limit 100 --json
    """

    async def look(runtime: CliRuntime) -> list[AnyChange]:
        return await (await _curator(runtime)).log(limit)

    changes = invocation.tend(look, nothing=[])
    if as_json:
        show.print_json([_change_as_json(change) for change in changes])
    elif not changes:
        click.echo(f"No note was ever written in {invocation.settings.home}.")
    else:
        for change in changes:
            click.echo(_headline(change))
            click.echo(f"  {show.shortened(change.words, _WORDS_CHARS_MAX)}")


@memory.command()
@click.argument("change", default="")
@json_option
@home_option
@pass_invocation
def undo(invocation: CliContext, change: str, as_json: bool) -> None:
    """Take back the newest change of the notes and skills, or the CHANGE that `memory log` names.

    It is taken back by a new version, so that this can be taken back as well.

    \b
    Examples:
      everthread memory undo
      everthread memory undo 01JZ8Q7M3N5P6R8S9T0V1W2X3Y:2
      everthread memory undo skill/release-notes:1
    """
    from everthread.commands.memory import undone

    async def work(runtime: CliRuntime) -> tuple[AnyChange, AnyChange]:
        curator = await _curator(runtime)
        done = await curator.undo(change)
        _tell(await curator.synced())
        return done

    (taken_back, made), _ = invocation.act(work)
    if as_json:
        text = made.words if made.action.value != "remove" else None
        show.print_json({"undone": taken_back.name, "version": made.name, "text": text or None})
    else:
        click.echo(f"{show.one_line(undone(taken_back, made))} `everthread memory undo` again undoes this.")


@memory.command()
@click.argument("target", type=click.Choice(["memory", "user"]), default="memory")
@json_option
@home_option
@pass_invocation
def edit(invocation: CliContext, target: str, as_json: bool) -> None:
    """Edit MEMORY.md or USER.md in $VISUAL or $EDITOR, and say what has changed.

    Notes are separated by lines with nothing but § on them.

    \b
    Examples:
      everthread memory edit
      EDITOR=nano everthread memory edit user
    """
    from everthread.cli.editor import edit_in_place
    from everthread.domain.model import NoteTarget

    async def before(runtime: CliRuntime) -> Any:
        curator = await _curator(runtime)
        return runtime.notebook.path(curator.owner, NoteTarget(target)), await _versions(curator)

    async def after(runtime: CliRuntime) -> list[Change]:
        await runtime.start()
        curator = await _curator(runtime, strict=True)
        changed = [c for c in await curator.note_log() if c.version.version > known.get(c.version.note_id, 0)]
        await runtime.drain()
        return changed

    file, known = invocation.talk(before)
    edit_in_place(file)
    changes = invocation.talk(after)
    if as_json:
        show.print_json({"file": str(file), "changes": [_change_as_json(change) for change in reversed(changes)]})
        return
    for change in reversed(changes):
        click.echo(f"{change.version.action.value:<7}  {show.shortened(change.words, _WORDS_CHARS_MAX)}")
    if not changes:
        click.echo("Nothing has changed.")


@memory.command()
@click.argument("note", shell_complete=completing.notes)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def forget(invocation: CliContext, note: str, yes: bool, as_json: bool) -> None:
    """Forget a NOTE (its id, or words of it) for good, and its words wherever they stand. There is no way back.

    The same as `everthread forget --note ID`. To take a note out of the prompt and no more, remove it with
    `everthread memory edit`.

    \b
    Examples:
      everthread memory forget "green tea"
      everthread memory forget 01JZ8Q7M3N5P6R8S9T0V1W2X3Y --yes
    """
    from everthread.cli.commands.forget import forget_it

    async def find(runtime: CliRuntime) -> str:
        return (await (await _curator(runtime)).versions(note))[0].version.note_id

    note_id, _ = invocation.act(find)
    forget_it(invocation, note=note_id, yes=yes, as_json=as_json)


@memory.command()
@json_option
@home_option
@pass_invocation
def status(invocation: CliContext, as_json: bool) -> None:
    """Show how every memory provider is doing, and how full the notes are.

    WAITING is what will be delivered by itself, and since when. PARKED is what the provider has rejected: `everthread
    memory retry` tries it again. STATE says until when a provider that was not there is left alone, or that there is
    nothing yet to tell it. The exit code is 1 while something is parked or a provider is not well.

    \b
    Examples:
      everthread memory status
      everthread memory status --json | jq '.providers[] | select(.parked > 0)'
    """
    from everthread.cli.commands.journal import show_parked
    from everthread.cli.commands.memory.status import PARKED_MAX, nothing_yet, providers, rows
    from everthread.commands.memory import fullness

    async def look(runtime: CliRuntime) -> tuple[list[dict[str, Any]], list[NoteVersion]]:
        return await providers(runtime), await _curator_of(runtime).notes()

    nobody_asked = nothing_yet(invocation.settings.memory.providers)
    found, notes = invocation.look(look, nothing=(nobody_asked, []))
    collections = list(_collections(notes, invocation.settings.memory))
    if as_json:
        of_notes = {
            t.value: {k: v for k, v in _collection(t, of, room).items() if k != "notes"} for t, of, room in collections
        }
        show.print_json({"providers": found, "notes": of_notes})
    else:
        click.echo(show.table(("PROVIDER", "WAITING", "PARKED", "STATE", "HEALTH", "LAST ERROR"), rows(found)))
        for target, of_target, room in collections:
            click.echo(fullness(target, of_target, room))
        parked = [(provider["provider"], entry) for provider in found for entry in provider["parked_entries"]]
        show_parked(parked, PARKED_MAX)
    if any(provider["parked"] or provider["health"] not in (None, "ok") for provider in found):
        raise click.exceptions.Exit(REFUSED)


@memory.command()
@click.argument("provider")
@click.argument("session", required=False, shell_complete=completing.sessions)
@json_option
@home_option
@pass_invocation
def retry(invocation: CliContext, provider: str, session: str | None, as_json: bool) -> None:
    """Try again what PROVIDER has rejected, in one SESSION (its id, beginning of it, or title) or all.

    The same as `everthread journal retry`. What waits because the provider is not there is tried again by itself.

    \b
    Examples:
      everthread memory retry honcho
      everthread memory retry honcho "Trip to Lisbon" --json
    """
    from everthread.cli.commands.journal import retry_parked

    retry_parked(invocation, provider, session, as_json=as_json)


async def _curator(runtime: CliRuntime, *, strict: bool = False) -> Curator:
    """With what was edited in the files. `strict` if nothing is worth doing without that."""
    from everthread.domain.errors import BadInput

    curator = _curator_of(runtime)
    problem = await curator.synced()
    if problem and strict:
        raise BadInput(problem)
    _tell(problem)
    return curator


def _curator_of(runtime: CliRuntime) -> Curator:
    from everthread.commands.note_history import Curator

    return Curator(runtime.lifecycle, runtime.store, runtime.notebook, runtime.settings.owner, runtime.skills)


def _tell(problem: str) -> None:
    if problem:
        click.echo(show.one_line(problem), err=True)


async def _listed(runtime: CliRuntime) -> list[NoteVersion]:
    return await (await _curator(runtime)).notes()


async def _versions(curator: Curator) -> dict[str, int]:
    known: dict[str, int] = {}
    for change in await curator.note_log():
        known[change.version.note_id] = max(change.version.version, known.get(change.version.note_id, 0))
    return known


def _collections(notes: list[NoteVersion], settings: Memory) -> list[tuple[NoteTarget, list[NoteVersion], int]]:
    from everthread.domain.model import NoteTarget

    rooms = {NoteTarget.USER: settings.user_chars, NoteTarget.MEMORY: settings.notes_chars}
    return [(target, [note for note in notes if note.target is target], room) for target, room in rooms.items()]


def _collection(target: NoteTarget, notes: list[NoteVersion], room: int) -> dict[str, Any]:
    return {
        "file": f"{target.name}.md",
        "chars": sum(len(note.content.strip()) for note in notes),
        "chars_max": room,
        "notes": [{"id": n.note_id, "version": n.version, "at": show.iso_time(n.at), "text": n.content} for n in notes],
    }


def _headline(change: AnyChange) -> str:
    from everthread.commands.memory import author

    return show.one_line(
        f"{change.name}  {show.local_time(change.at)}  {change.action.value}  {change.place}  by {author(change)}"
    )


def _change_as_json(change: AnyChange) -> dict[str, Any]:
    from everthread.commands.note_history import Change

    source, window = change.source, change.source.reviewed
    if isinstance(change, Change):
        version = change.version
        what = {
            "note": version.note_id,
            "skill": None,
            "version": version.version,
            "target": version.target.value,
            "action": version.action.value,
            "text": version.content or None,
            "before": change.before or None,
        }
    else:
        edit = change.change
        what = {
            "note": None,
            "skill": edit.skill,
            "version": edit.number,
            "target": "skill",
            "action": edit.action.value,
            "text": edit.description or None,
            "before": edit.before or None,
        }
    return {
        "change": change.name,
        **what,
        "at": show.iso_time(change.at),
        "by": "review" if window else "agent" if source.by_agent else "user",
        "session": source.session_id if source.in_conversation else None,
        "title": source.title,
        "turn": source.turn,
        "turns": [window.from_turn, window.to_turn] if window else None,
        "turn_id": source.turn_id,
    }
