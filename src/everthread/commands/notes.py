"""`/memory`: the curated notes, for the eyes and hands of the person they are about."""

from __future__ import annotations

from everthread.commands.desk import Desk, Said, counted, excerpt, refused
from everthread.domain.errors import BadInput, EverthreadError, NotFound
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion
from everthread.lifecycle import NoteChange
from everthread.lifecycle.finding import PREFIX_CHARS_MIN
from everthread.ports import UnitOfWork

USAGE = "/memory [add TEXT | remove ID or TEXT]"
_LINE_CHARS_MAX = 200


async def memory(desk: Desk, argument: str) -> Said:
    verb, _, rest = argument.partition(" ")
    match verb.lower(), rest.strip():
        case "", _:
            return await _show(desk)
        case "add", text if text:
            return await _add(desk, text)
        case "remove", wanted if wanted:
            return await _remove(desk, wanted)
        case _:
            return refused(f"Usage: {USAGE}")


async def _show(desk: Desk) -> Said:
    # What was edited in the files counts.
    problem = await _synced(desk)
    notes = await desk.store.read(lambda uow: _all(uow, desk.owner))
    if not notes:
        return Said(f"No notes yet; /memory add TEXT writes one.{problem}")
    lines: list[str] = []
    for target, room in ((NoteTarget.USER, desk.user_chars), (NoteTarget.MEMORY, desk.notes_chars)):
        of_target = [note for note in notes if note.target is target]
        chars = sum(len(note.content.strip()) for note in of_target)
        if of_target:
            lines.append(f"{target.name}.md: {chars} of {room} characters ({100 * chars // room} % full)")
            lines += [f"  {note.note_id}  {excerpt(note.content, _LINE_CHARS_MAX)[1:-1]}" for note in of_target]
    return Said("\n".join(lines) + problem)


async def _add(desk: Desk, text: str) -> Said:
    # Written where the person is: forgetting that conversation then forgets the note with it.
    ref = await desk.lifecycle.current(desk.key)
    here = ref if ref is not None and ref.owner == desk.owner else None
    await desk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, text), owner=desk.owner, ref=here)
    return Said(f"Noted: {excerpt(text)}. It is recalled from now on.{await _synced(desk)}")


async def _remove(desk: Desk, wanted: str) -> Said:
    await _synced(desk)
    note = _meant(await desk.store.read(lambda uow: _all(uow, desk.owner)), wanted)
    change = NoteChange(NoteAction.REMOVE, note.target, note_id=note.note_id)
    await desk.lifecycle.write_note(change, owner=desk.owner)
    problem = await _synced(desk)
    return Said(f"Removed: {excerpt(note.content)}. What was said stays in its conversations.{problem}")


async def _synced(desk: Desk) -> str:
    """Bring the files of notes into step; what went wrong, as a further line. The store is the truth, not the files."""
    try:
        await desk.notebook.sync(desk.owner)
    except (OSError, EverthreadError) as error:
        return f"\nThe files of notes were left as they are: {error}"
    return ""


def _all(uow: UnitOfWork, owner: str) -> list[NoteVersion]:
    return [note for target in NoteTarget for note in uow.notes.current(owner, target)]


def _meant(notes: list[NoteVersion], wanted: str) -> NoteVersion:
    """The note of that id, of the beginning of an id, with exactly these words, or with these words in it."""
    words = " ".join(wanted.casefold().split())
    found = [note for note in notes if note.note_id == wanted]
    found = found or [note for note in notes if " ".join(note.content.casefold().split()) == words]
    if not found and len(wanted) >= PREFIX_CHARS_MIN:
        found = [note for note in notes if note.note_id.startswith(wanted)]
    found = found or [note for note in notes if words in " ".join(note.content.casefold().split())]
    if not found:
        raise NotFound(f"There is no note {excerpt(wanted)}; /memory shows the ones there are.")
    if len(found) > 1:
        some = ", ".join(note.note_id for note in found[:3])
        raise BadInput(f"{excerpt(wanted)} fits {counted(len(found), 'note')}, among them {some}; give an id.")
    return found[0]
