"""What a person can do with what was kept of their conversations: see how notes and skills came about, take them back.

The slash command and the command line only put this into words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.history import PREFIX, SkillChange
from everthread.commands.context import excerpt
from everthread.domain.errors import BadInput, EverthreadError, NotFound
from everthread.domain.model import FORGOTTEN, Kind, NoteAction, NoteTarget, NoteVersion
from everthread.domain.review_window import Window
from everthread.domain.text_format import counted
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.session_lookup import PREFIX_CHARS_MIN
from everthread.memory.note_files import Notebook
from everthread.store.unit_of_work import Store, UnitOfWork

_CHANGES_MAX = 100_000


class Source(Struct, frozen=True):
    """Where a change was made."""

    session_id: str
    turn_id: str | None
    """None if no turn of the agent made it."""
    in_conversation: bool
    title: str | None
    """Of the conversation that it was made in."""
    turn: int | None
    """Of that conversation; none if no turn of the agent made it."""

    @property
    def reviewed(self) -> Window | None:
        """The turns that it was drawn from, if a background review made it."""
        return Window.marked(self.turn_id)

    @property
    def by_agent(self) -> bool:
        return self.turn_id is not None


class Change(Struct, frozen=True):
    """One version of a note, and how it came about."""

    version: NoteVersion
    before: str
    """What the note said until then; empty if it was new."""
    source: Source

    @property
    def name(self) -> str:
        """What to call it by: `undo` takes it."""
        return f"{self.version.note_id}:{self.version.version}"

    @property
    def at(self) -> float:
        return self.version.at

    @property
    def action(self) -> NoteAction:
        return self.version.action

    @property
    def place(self) -> str:
        return f"{self.version.target.name}.md"

    @property
    def words(self) -> str:
        """What it is about: what was written or, of a removal, what was removed."""
        return self.before if self.version.action is NoteAction.REMOVE else self.version.content


class SkillEdit(Struct, frozen=True):
    """One change of a skill, and how it came about."""

    change: SkillChange
    source: Source

    @property
    def name(self) -> str:
        return self.change.name

    @property
    def at(self) -> float:
        return self.change.at

    @property
    def action(self) -> NoteAction:
        return self.change.action

    @property
    def place(self) -> str:
        return f"skill {self.change.skill}"

    @property
    def words(self) -> str:
        """What the skill is for."""
        return self.change.description


AnyChange = Change | SkillEdit


class Curator(Struct, frozen=True):
    """One owner's notes and, if the home is theirs, skills."""

    lifecycle: Lifecycle
    store: Store
    notebook: Notebook
    owner: str
    skills: SkillFolders | None = None

    async def synced(self) -> str:
        """Bring the files into step; what went wrong, if anything. The store is the truth, not the files."""
        try:
            await self.notebook.sync(self.owner)
        except (OSError, EverthreadError) as error:
            return f"The files of notes were left as they are: {error}"
        return ""

    async def notes(self) -> list[NoteVersion]:
        return await self.store.read(lambda uow: _current(uow, self.owner))

    async def log(self, limit: int = _CHANGES_MAX) -> list[AnyChange]:
        """The changes of all notes and skills, the newest first."""
        edits = await self._skill_changes()

        def look(uow: UnitOfWork) -> list[AnyChange]:
            notes: list[AnyChange] = [_change(uow, version) for version in uow.notes.history(self.owner, limit)]
            skills: list[AnyChange] = [_edit(uow, edit, self.owner) for edit in edits[:limit]]
            # Of two in the same moment, those that are newest first already stay so.
            return sorted((*notes, *skills), key=lambda change: -change.at)[:limit]

        return await self.store.read(look)

    async def note_log(self) -> list[Change]:
        """The changes of all notes, the newest first."""
        return await self.store.read(
            lambda uow: [_change(uow, version) for version in uow.notes.history(self.owner, _CHANGES_MAX)]
        )

    async def versions(self, wanted: str) -> list[Change]:
        """How a note came about, the newest first; also of one that was removed, if it is named by its id."""

        def look(uow: UnitOfWork) -> list[Change]:
            note_id = _find(uow, self.owner, wanted).note_id
            return [_change(uow, version) for version in reversed(uow.notes.versions(note_id))]

        return await self.store.read(look)

    async def undo(self, wanted: str = "") -> tuple[AnyChange, AnyChange]:
        """Take back the change of that name, or else the newest; it, and the one that was made to do so."""
        edits = await self._skill_changes()
        edit = _edit_meant(edits, wanted)
        if edit is None and (not wanted or not wanted.startswith(PREFIX)):
            since = edits[0].at if edits and not wanted else None
            change = await self.store.read(lambda uow: _change_meant(uow, self.owner, wanted, since))
            if change is not None:
                return change, await self._note_taken_back(change.version)
            edit = edits[0]
        if edit is None:
            raise _no_change(wanted)
        return await self._skill_taken_back(edit)

    async def _note_taken_back(self, version: NoteVersion) -> Change:
        made = await self.lifecycle.undo_note(version.note_id, version.version, owner=self.owner)
        return await self.store.read(lambda uow: _change(uow, made))

    async def _skill_taken_back(self, edit: SkillChange) -> tuple[SkillEdit, SkillEdit]:
        assert self.skills is not None
        done = await asyncio.to_thread(self.skills.take_back, edit.skill, edit.number)
        return await self.store.read(lambda uow: (_edit(uow, done[0], self.owner), _edit(uow, done[1], self.owner)))

    async def _skill_changes(self) -> list[SkillChange]:
        return [] if self.skills is None else await asyncio.to_thread(self.skills.changes)


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


def _edit_meant(edits: Sequence[SkillChange], wanted: str) -> SkillChange | None:
    """The change of that name, or the last one of the skill of that name."""
    return next((edit for edit in edits if wanted in (edit.name, f"{PREFIX}{edit.skill}")), None)


def _change_meant(uow: UnitOfWork, owner: str, wanted: str, since: float | None) -> Change | None:
    """None if no name is given, and whatever was changed after `since` is no note."""
    if not wanted:
        known = (v for v in uow.notes.history(owner, _CHANGES_MAX) if v.content != FORGOTTEN)
        newest = next(known, None)
        if since is not None and (newest is None or newest.at < since):
            return None
        if newest is None:
            raise NotFound("there is nothing to take back: no note was written")
        return _change(uow, newest)
    note, colon, number = wanted.partition(":")
    last = _of_id(uow, owner, note)
    versions = uow.notes.versions(last.note_id) if last is not None else ()
    named = [version for version in versions if not colon or str(version.version) == number]
    if not named:
        raise _no_change(wanted)
    return _change(uow, named[-1])


def _no_change(wanted: str) -> NotFound:
    shown = "/memory log (`everthread memory log`) shows those there are"
    return NotFound(f"there is no change {excerpt(wanted)}; {shown}")


def _change(uow: UnitOfWork, version: NoteVersion) -> Change:
    earlier = [v for v in uow.notes.versions(version.note_id) if v.version == version.version - 1]
    source = _source(uow, version.session_id, version.turn_id, version.owner)
    return Change(version, earlier[0].content if earlier else "", source)


def _edit(uow: UnitOfWork, edit: SkillChange, owner: str) -> SkillEdit:
    origin = edit.origin
    return SkillEdit(edit, _source(uow, origin.session_id if origin else "", origin.turn_id if origin else None, owner))


def _source(uow: UnitOfWork, session_id: str, turn_id: str | None, owner: str) -> Source:
    session = uow.sessions.get(session_id)
    talk = session if session is not None and session.kind is not Kind.NOTES and session.owner == owner else None
    turn = uow.turns.number(talk.id, turn_id) if talk is not None and turn_id else None
    return Source(session_id, turn_id, talk is not None, talk.title if talk is not None else None, turn)
