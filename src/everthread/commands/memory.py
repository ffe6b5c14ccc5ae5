"""`/memory`: the curated notes, for the eyes and hands of the person they are about."""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, excerpt, refused
from everthread.commands.note_history import AnyChange, Change, Curator, meant
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.lifecycle import NoteChange

USAGE = "/memory [add TEXT | remove ID or TEXT | log | undo [CHANGE]]"
_LINE_CHARS_MAX = 200
_LOG_MAX = 20


async def memory(desk: CommandContext, argument: str) -> CommandResult:
    verb, _, rest = argument.partition(" ")
    curator = Curator(desk.lifecycle, desk.store, desk.notebook, desk.owner, desk.skills)
    match verb.lower(), rest.strip():
        case "", _:
            return await _show(desk, curator)
        case "add", text if text:
            return await _add(desk, curator, text)
        case "remove", wanted if wanted:
            return await _remove(desk, curator, wanted)
        case "log", "":
            return await _log(curator)
        case "undo", wanted:
            return await _undo(curator, wanted)
        case _:
            return refused(f"Usage: {USAGE}")


async def _show(desk: CommandContext, curator: Curator) -> CommandResult:
    # What was edited in the files counts.
    problem = await _synced(curator)
    notes = await curator.notes()
    if not notes:
        return CommandResult(f"No notes yet; /memory add TEXT writes one.{problem}")
    lines: list[str] = []
    for target, room in ((NoteTarget.USER, desk.user_chars), (NoteTarget.MEMORY, desk.notes_chars)):
        of_target = [note for note in notes if note.target is target]
        if of_target:
            lines.append(fullness(target, of_target, room))
            lines += [f"  {note.note_id}  {excerpt(note.content, _LINE_CHARS_MAX)[1:-1]}" for note in of_target]
    return CommandResult("\n".join(lines) + problem)


async def _add(desk: CommandContext, curator: Curator, text: str) -> CommandResult:
    # Written where the person is: forgetting that conversation then forgets the note with it.
    ref = await desk.lifecycle.current(desk.key)
    here = ref if ref is not None and ref.owner == desk.owner else None
    await desk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, text), owner=desk.owner, ref=here)
    return CommandResult(f"Noted: {excerpt(text)}. It is recalled from now on.{await _synced(curator)}")


async def _remove(desk: CommandContext, curator: Curator, wanted: str) -> CommandResult:
    await _synced(curator)
    note = meant(await curator.notes(), wanted)
    change = NoteChange(NoteAction.REMOVE, note.target, note_id=note.note_id)
    await desk.lifecycle.write_note(change, owner=desk.owner)
    problem = await _synced(curator)
    return CommandResult(f"Removed: {excerpt(note.content)}. What was said stays in its conversations.{problem}")


async def _log(curator: Curator) -> CommandResult:
    problem = await _synced(curator)
    changes = await curator.log(_LOG_MAX)
    if not changes:
        return CommandResult(f"No note was ever written.{problem}")
    lines = [
        f"{change.name}  {_minute(change.at)}  {change.action.value:<7}  {excerpt(change.words)}, by {author(change)}"
        for change in changes
    ]
    return CommandResult(
        "\n".join([*lines, "/memory undo takes the newest back, /memory undo CHANGE another."]) + problem
    )


async def _undo(curator: Curator, wanted: str) -> CommandResult:
    await _synced(curator)
    change, made = await curator.undo(wanted)
    problem = await _synced(curator)
    return CommandResult(f"{undone(change, made)} /memory undo again undoes this.{problem}")


def undone(change: AnyChange, made: AnyChange) -> str:
    """What taking a change back has done."""
    if not isinstance(change, Change):
        what = f"the {change.place}"
        match made.action:
            case NoteAction.REMOVE:
                return f"Removed again: {what}; the last version of it is kept."
            case NoteAction.ADD:
                return f"Written again: {what}."
            case NoteAction.REPLACE:
                return f"As it was before: {what}."
    if made.action is NoteAction.REMOVE:
        return f"Removed again: {excerpt(change.words)}."
    if made.action is NoteAction.ADD:
        return f"Noted again: {excerpt(made.words)}."
    return f"As it was before: {excerpt(made.words)}."


def author(change: AnyChange) -> str:
    """Who made a change, and where."""
    source = change.source
    who = "the agent" if source.by_agent else "you"
    if not source.in_conversation:
        return who
    turn = f"turn {source.turn} of " if source.turn is not None else ""
    place = excerpt(source.title) if source.title else source.session_id
    if (window := source.reviewed) is not None:
        return f"a review of {window.words} of {place}"
    return f"{who}, in {turn}{place}"


def fullness(target: NoteTarget, notes: list[NoteVersion], room: int) -> str:
    """How much of its room a collection takes up."""
    chars = sum(len(note.content.strip()) for note in notes)
    return f"{target.name}.md: {chars} of {room} characters ({100 * chars // room} % full)"


async def _synced(curator: Curator) -> str:
    """What went wrong with the files, as a further line."""
    problem = await curator.synced()
    return f"\n{problem}" if problem else ""


def _minute(at: float) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 - only lists need it

    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
