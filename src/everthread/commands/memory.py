"""`/memory`: show, add and remove notes, list their edits and undo them."""

from __future__ import annotations

from everthread.commands.context import CommandContext, CommandResult, fail
from everthread.commands.note_history import Edit, NoteEdit, NoteHistory, find_note
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.domain.text_format import local_time, quote_start
from everthread.lifecycle import NoteChange

ARGUMENTS = "[add TEXT | remove ID or TEXT | log | undo [CHANGE]]"
_LINE_CHARS_MAX = 200
_LOG_MAX = 20


async def memory(context: CommandContext, argument: str) -> CommandResult:
    verb, _, rest = argument.partition(" ")
    history = NoteHistory(context.runtime, context.owner)
    match verb.lower(), rest.strip():
        case "", _:
            return await _show(context, history)
        case "add", text if text:
            return await _add(context, history, text)
        case "remove", wanted if wanted:
            return await _remove(context, history, wanted)
        case "log", "":
            return await _log(history)
        case "undo", wanted:
            return await _undo(history, wanted)
        case _:
            return fail(f"Usage: /memory {ARGUMENTS}")


async def _show(context: CommandContext, history: NoteHistory) -> CommandResult:
    # Edits in the files count too.
    problem = await _sync(history)
    notes = await history.notes()
    if not notes:
        return CommandResult(f"There are no notes yet. Add one: /memory add TEXT{problem}")
    lines: list[str] = []
    settings = context.runtime.settings.memory
    for target, limit in ((NoteTarget.USER, settings.user_chars), (NoteTarget.MEMORY, settings.notes_chars)):
        of_target = [note for note in notes if note.target is target]
        if of_target:
            lines.append(format_fullness(target, of_target, limit))
            lines += [f"  {note.note_id}  {quote_start(note.content, _LINE_CHARS_MAX)[1:-1]}" for note in of_target]
    return CommandResult("\n".join(lines) + problem)


async def _add(context: CommandContext, history: NoteHistory, text: str) -> CommandResult:
    # Tied to the current session: forgetting that session also forgets the note.
    ref = await context.runtime.lifecycle.current(context.key)
    here = ref if ref is not None and ref.owner == context.owner else None
    await context.runtime.lifecycle.write_note(
        NoteChange(NoteAction.ADD, NoteTarget.MEMORY, text), owner=context.owner, ref=here
    )
    return CommandResult(f"Noted: {quote_start(text)}. The agent recalls it from now on.{await _sync(history)}")


async def _remove(context: CommandContext, history: NoteHistory, wanted: str) -> CommandResult:
    await _sync(history)
    note = find_note(await history.notes(), wanted)
    change = NoteChange(NoteAction.REMOVE, note.target, note_id=note.note_id)
    await context.runtime.lifecycle.write_note(change, owner=context.owner)
    problem = await _sync(history)
    return CommandResult(f"Removed: {quote_start(note.content)}. Messages in your sessions are unchanged.{problem}")


async def _log(history: NoteHistory) -> CommandResult:
    problem = await _sync(history)
    changes = await history.log(_LOG_MAX)
    if not changes:
        return CommandResult(f"There are no changes: no note was ever written.{problem}")
    lines = [
        f"{change.name}  {local_time(change.at)}  {change.action.value:<7}  {quote_start(change.words)}, "
        f"by {format_author(change)}"
        for change in changes
    ]
    return CommandResult(
        "\n".join([*lines, "/memory undo reverts the newest change, /memory undo CHANGE another."]) + problem
    )


async def _undo(history: NoteHistory, wanted: str) -> CommandResult:
    await _sync(history)
    change, made = await history.undo(wanted)
    problem = await _sync(history)
    return CommandResult(f"{format_undo(change, made)} Run /memory undo again to revert this.{problem}")


def format_undo(change: Edit, made: Edit) -> str:
    """The result of undoing `change` by the edit `made`."""
    is_note = isinstance(change, NoteEdit)
    match made.action:
        case NoteAction.REMOVE:
            return (
                f"Removed again: {quote_start(change.words)}."
                if is_note
                else (f"Removed again: the {change.place}. Its last version is kept.")
            )
        case NoteAction.ADD:
            return f"Restored: {quote_start(made.words) if is_note else f'the {change.place}'}."
        case NoteAction.REPLACE:
            what = f"text: {quote_start(made.words)}" if is_note else f"version: the {change.place}"
            return f"Restored the previous {what}."


def format_author(change: Edit) -> str:
    """The author and origin of an edit."""
    source = change.source
    who = "the agent" if source.by_agent else "you"
    if not source.in_conversation:
        return who
    turn = f"turn {source.turn} of " if source.turn is not None else ""
    place = quote_start(source.title) if source.title else source.session_id
    if (window := source.reviewed) is not None:
        return f"a review of {window.label} of {place}"
    return f"{who}, in {turn}{place}"


def format_fullness(target: NoteTarget, notes: list[NoteVersion], limit: int) -> str:
    """The used share of the characters that the model sees."""
    chars = sum(len(note.content.strip()) for note in notes)
    return f"{target.name}.md: {chars} of {limit} characters ({100 * chars // limit} % full)"


async def _sync(history: NoteHistory) -> str:
    """Synchronise the note files; return a problem as an extra line."""
    problem = await history.sync()
    return f"\n{problem}" if problem else ""
