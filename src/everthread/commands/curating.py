"""What a person can do with their curated notes: find them, see how they came about, take a change back.

The slash command and the command line only put this into words.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.commands.desk import counted, excerpt
from everthread.domain.errors import BadInput, EverthreadError, NotFound
from everthread.domain.model import FORGOTTEN, Kind, NoteAction, NoteTarget, NoteVersion
from everthread.domain.review import Window
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.finding import PREFIX_CHARS_MIN
from everthread.memory.notes import Notebook
from everthread.ports import Store, UnitOfWork

_CHANGES_MAX = 100_000


class Change(Struct, frozen=True):
    """One version of a note, and how it came about."""

    version: NoteVersion
    before: str
    """What the note said until then; empty if it was new."""
    in_conversation: bool
    title: str | None
    """Of the conversation that it was written in."""
    turn: int | None
    """Of that conversation; none if no turn of the agent wrote it."""

    @property
    def name(self) -> str:
        """What to call it by: `undo` takes it."""
        return f"{self.version.note_id}:{self.version.version}"

    @property
    def reviewed(self) -> Window | None:
        """The turns that it was drawn from, if a background review wrote it."""
        return Window.marked(self.version.turn_id)

    @property
    def by_agent(self) -> bool:
        return self.version.turn_id is not None

    @property
    def words(self) -> str:
        """What it is about: what was written or, of a removal, what was removed."""
        return self.before if self.version.action is NoteAction.REMOVE else self.version.content


class Curator(Struct, frozen=True):
    """One owner's notes."""

    lifecycle: Lifecycle
    store: Store
    notebook: Notebook
    owner: str

    async def synced(self) -> str:
        """Bring the files into step; what went wrong, if anything. The store is the truth, not the files."""
        try:
            await self.notebook.sync(self.owner)
        except (OSError, EverthreadError) as error:
            return f"The files of notes were left as they are: {error}"
        return ""

    async def notes(self) -> list[NoteVersion]:
        return await self.store.read(lambda uow: _current(uow, self.owner))

    async def log(self, limit: int = _CHANGES_MAX) -> list[Change]:
        """The changes of all notes, the newest first."""
        return await self.store.read(
            lambda uow: [_change(uow, version) for version in uow.notes.history(self.owner, limit)]
        )

    async def versions(self, wanted: str) -> list[Change]:
        """How a note came about, the newest first; also of one that was removed, if it is named by its id."""

        def look(uow: UnitOfWork) -> list[Change]:
            note_id = _find(uow, self.owner, wanted).note_id
            return [_change(uow, version) for version in reversed(uow.notes.versions(note_id))]

        return await self.store.read(look)

    async def undo(self, wanted: str = "") -> tuple[Change, NoteVersion]:
        """Take back the change of that name, or else the newest; it, and the version that was made to do so."""
        change = await self.store.read(lambda uow: _change_meant(uow, self.owner, wanted))
        version = change.version
        made = await self.lifecycle.undo_note(version.note_id, version.version, owner=self.owner)
        return change, made


def meant(notes: Sequence[NoteVersion], wanted: str) -> NoteVersion:
    """The note of that id, of the beginning of an id, with exactly these words, or with these words in it."""
    words = " ".join(wanted.casefold().split())
    found = [note for note in notes if note.note_id == wanted]
    found = found or [note for note in notes if " ".join(note.content.casefold().split()) == words]
    if not found and len(wanted) >= PREFIX_CHARS_MIN:
        found = [note for note in notes if note.note_id.startswith(wanted)]
    found = found or [note for note in notes if words in " ".join(note.content.casefold().split())]
    if not found:
        raise NotFound(f"there is no note {excerpt(wanted)}; /memory (`everthread memory list`) shows those there are")
    if len(found) > 1:
        some = ", ".join(note.note_id for note in found[:3])
        raise BadInput(f"{excerpt(wanted)} fits {counted(len(found), 'note')}, among them {some}; give an id")
    return found[0]


def _current(uow: UnitOfWork, owner: str) -> list[NoteVersion]:
    return [note for target in NoteTarget for note in uow.notes.current(owner, target)]


def _find(uow: UnitOfWork, owner: str, wanted: str) -> NoteVersion:
    try:
        return meant(_current(uow, owner), wanted)
    except NotFound:
        removed = _of_id(uow, owner, wanted)
        if removed is None:
            raise
        return removed


def _of_id(uow: UnitOfWork, owner: str, wanted: str) -> NoteVersion | None:
    """The last version of the note with that id, or whose id alone begins so."""
    last = uow.notes.get(wanted)
    if last is not None and last.owner == owner:
        return last
    if len(wanted) < PREFIX_CHARS_MIN:
        return None
    ids = {v.note_id for v in uow.notes.history(owner, _CHANGES_MAX) if v.note_id.startswith(wanted)}
    return uow.notes.get(ids.pop()) if len(ids) == 1 else None


def _change_meant(uow: UnitOfWork, owner: str, wanted: str) -> Change:
    if not wanted:
        known = (v for v in uow.notes.history(owner, _CHANGES_MAX) if v.content != FORGOTTEN)
        newest = next(known, None)
        if newest is None:
            raise NotFound("there is nothing to take back: no note was written")
        return _change(uow, newest)
    note, colon, number = wanted.partition(":")
    last = _of_id(uow, owner, note)
    versions = uow.notes.versions(last.note_id) if last is not None else ()
    named = [version for version in versions if not colon or str(version.version) == number]
    if not named:
        shown = "/memory log (`everthread memory log`) shows those there are"
        raise NotFound(f"there is no change {excerpt(wanted)}; {shown}")
    return _change(uow, named[-1])


def _change(uow: UnitOfWork, version: NoteVersion) -> Change:
    earlier = [v for v in uow.notes.versions(version.note_id) if v.version == version.version - 1]
    session = uow.sessions.get(version.session_id)
    talk = session if session is not None and session.kind is not Kind.NOTES else None
    turn = uow.turns.number(talk.id, version.turn_id) if talk is not None and version.turn_id else None
    return Change(
        version, earlier[0].content if earlier else "", talk is not None, talk.title if talk is not None else None, turn
    )
