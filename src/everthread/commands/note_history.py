"""The history of an owner's notes and skills: list, show and undo edits.

Used by `/memory` and by `everthread memory`, which format the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.history import PREFIX, SkillChange
from everthread.commands.context import CommandRuntime
from everthread.domain.errors import BadInput, EverthreadError, NotFound
from everthread.domain.model import FORGOTTEN, NoteAction, NoteTarget, NoteVersion, SessionKind
from everthread.domain.review_window import ReviewWindow
from everthread.domain.text_format import pluralize, quote_start
from everthread.lifecycle.session_lookup import PREFIX_CHARS_MIN
from everthread.store.unit_of_work import UnitOfWork

_EDITS_MAX = 100_000


class EditSource(Struct, frozen=True):
    """The origin of an edit."""

    session_id: str
    turn_id: str | None
    """`None` if a person made the edit."""
    in_conversation: bool = False
    title: str | None = None
    """The title of the session, if the edit was made in one."""
    turn: int | None = None
    """The number of the turn in that session; `None` if a person made the edit."""

    @property
    def reviewed(self) -> ReviewWindow | None:
        """The reviewed turns, if a background review made the edit."""
        return ReviewWindow.from_mark(self.turn_id)

    @property
    def by_agent(self) -> bool:
        return self.turn_id is not None


class _Edit(Struct, frozen=True):
    name: str
    """The name that `undo` accepts."""
    at: float
    action: NoteAction
    place: str
    """The file or skill that was edited."""
    words: str
    """The new text or, of a removal, the removed text. Of a skill, its description."""
    source: EditSource


class NoteEdit(_Edit, frozen=True):
    """One version of a note and its origin."""

    version: NoteVersion
    before: str
    """The previous text; empty if the note was new."""


class SkillEdit(_Edit, frozen=True):
    """One change of a skill and its origin."""

    change: SkillChange


Edit = NoteEdit | SkillEdit


class NoteHistory(Struct, frozen=True):
    """Notes of one owner and, for the owner of this machine, skills."""

    runtime: CommandRuntime
    owner: str

    @property
    def skills(self) -> SkillFolders | None:
        """The skills; `None` for guests."""
        return self.runtime.skills if self.owner == self.runtime.settings.owner else None

    async def sync(self) -> str:
        """Synchronise the note files with the store; return the problem, if any. The store is authoritative."""
        try:
            await self.runtime.note_files.sync(self.owner)
        except (OSError, EverthreadError) as error:
            return f"The note files were not updated: {error}"
        return ""

    async def notes(self) -> list[NoteVersion]:
        return await self.runtime.store.read(lambda uow: _current(uow, self.owner))

    async def log(self, limit: int = _EDITS_MAX) -> list[Edit]:
        """The changes of all notes and skills, the newest first."""
        edits = await self._skill_changes()

        def read(uow: UnitOfWork) -> list[Edit]:
            notes: list[Edit] = [_note_edit(uow, version) for version in uow.notes.history(self.owner, limit)]
            skills: list[Edit] = [_skill_edit(uow, edit, self.owner) for edit in edits[:limit]]
            # A stable sort: edits with the same time keep their order.
            return sorted((*notes, *skills), key=lambda change: -change.at)[:limit]

        return await self.runtime.store.read(read)

    async def note_log(self) -> list[NoteEdit]:
        """Edits of all notes, newest first."""
        return await self.runtime.store.read(
            lambda uow: [_note_edit(uow, version) for version in uow.notes.history(self.owner, _EDITS_MAX)]
        )

    async def versions(self, wanted: str) -> list[NoteEdit]:
        """Versions of a note, newest first. A removed note is found by its id."""

        def read(uow: UnitOfWork) -> list[NoteEdit]:
            note_id = _find(uow, self.owner, wanted).note_id
            return [_note_edit(uow, version) for version in reversed(uow.notes.versions(note_id))]

        return await self.runtime.store.read(read)

    async def undo(self, wanted: str = "") -> tuple[Edit, Edit]:
        """Undo the edit of that name, or the newest. Returns it and the edit that reverts it."""
        edits = await self._skill_changes()
        # The change of that name, or the last change of the skill of that name.
        edit = next((edit for edit in edits if wanted in (edit.name, f"{PREFIX}{edit.skill}")), None)
        if edit is None and (not wanted or not wanted.startswith(PREFIX)):
            since = edits[0].at if edits and not wanted else None
            change = await self.runtime.store.read(lambda uow: _find_note_edit(uow, self.owner, wanted, since))
            if change is not None:
                return change, await self._undo_note(change.version)
            edit = edits[0]
        if edit is None:
            raise _edit_not_found(wanted)
        return await self._undo_skill(edit)

    async def _undo_note(self, version: NoteVersion) -> NoteEdit:
        made = await self.runtime.lifecycle.undo_note(version.note_id, version.version, owner=self.owner)
        return await self.runtime.store.read(lambda uow: _note_edit(uow, made))

    async def _undo_skill(self, change: SkillChange) -> tuple[SkillEdit, SkillEdit]:
        assert self.skills is not None
        done, made = await asyncio.to_thread(self.skills.undo, change.skill, change.number)
        return await self.runtime.store.read(
            lambda uow: (_skill_edit(uow, done, self.owner), _skill_edit(uow, made, self.owner))
        )

    async def _skill_changes(self) -> list[SkillChange]:
        return [] if self.skills is None else await asyncio.to_thread(self.skills.changes)


def find_note(notes: Sequence[NoteVersion], wanted: str) -> NoteVersion:
    """Find a note by id, exact text, id prefix or part of its text, in this order."""
    words = " ".join(wanted.casefold().split())
    found = [note for note in notes if note.note_id == wanted]
    found = found or [note for note in notes if " ".join(note.content.casefold().split()) == words]
    if not found and len(wanted) >= PREFIX_CHARS_MIN:
        found = [note for note in notes if note.note_id.startswith(wanted)]
    found = found or [note for note in notes if words in " ".join(note.content.casefold().split())]
    if not found:
        raise NotFound(f"there is no note {quote_start(wanted)}; /memory (`everthread memory list`) lists the notes")
    if len(found) > 1:
        some = ", ".join(note.note_id for note in found[:3])
        raise BadInput(f"{quote_start(wanted)} matches {pluralize(len(found), 'note')}, such as {some}; give an id")
    return found[0]


def _current(uow: UnitOfWork, owner: str) -> list[NoteVersion]:
    return [note for target in NoteTarget for note in uow.notes.current(owner, target)]


def _find(uow: UnitOfWork, owner: str, wanted: str) -> NoteVersion:
    try:
        return find_note(_current(uow, owner), wanted)
    except NotFound:
        removed = _find_by_id(uow, owner, wanted)
        if removed is None:
            raise
        return removed


def _find_by_id(uow: UnitOfWork, owner: str, wanted: str) -> NoteVersion | None:
    """The last version of the note with that id or unambiguous id prefix."""
    last = uow.notes.get(wanted)
    if last is not None and last.owner == owner:
        return last
    if len(wanted) < PREFIX_CHARS_MIN:
        return None
    ids = {v.note_id for v in uow.notes.history(owner, _EDITS_MAX) if v.note_id.startswith(wanted)}
    return uow.notes.get(ids.pop()) if len(ids) == 1 else None


def _find_note_edit(uow: UnitOfWork, owner: str, wanted: str, since: float | None) -> NoteEdit | None:
    """The edit of that name or, without a name, the newest; `None` if that is older than `since`."""
    if not wanted:
        known = (v for v in uow.notes.history(owner, _EDITS_MAX) if v.content != FORGOTTEN)
        newest = next(known, None)
        if since is not None and (newest is None or newest.at < since):
            return None
        if newest is None:
            raise NotFound("there is nothing to undo: no note was written")
        return _note_edit(uow, newest)
    note, colon, number = wanted.partition(":")
    last = _find_by_id(uow, owner, note)
    versions = uow.notes.versions(last.note_id) if last is not None else ()
    named = [version for version in versions if not colon or str(version.version) == number]
    if not named:
        raise _edit_not_found(wanted)
    return _note_edit(uow, named[-1])


def _edit_not_found(wanted: str) -> NotFound:
    shown = "/memory log (`everthread memory log`) lists the changes"
    return NotFound(f"there is no change {quote_start(wanted)}; {shown}")


def _note_edit(uow: UnitOfWork, version: NoteVersion) -> NoteEdit:
    earlier = [v.content for v in uow.notes.versions(version.note_id) if v.version == version.version - 1]
    before = earlier[0] if earlier else ""
    return NoteEdit(
        f"{version.note_id}:{version.version}",
        version.at,
        version.action,
        f"{version.target.name}.md",
        before if version.action is NoteAction.REMOVE else version.content,
        _source(uow, version.session_id, version.turn_id, version.owner),
        version,
        before,
    )


def _skill_edit(uow: UnitOfWork, change: SkillChange, owner: str) -> SkillEdit:
    session_id, turn_id = (change.origin.session_id, change.origin.turn_id) if change.origin else ("", None)
    source = _source(uow, session_id, turn_id, owner)
    place = f"skill {change.skill}"
    return SkillEdit(change.name, change.at, change.action, place, change.description, source, change)


def _source(uow: UnitOfWork, session_id: str, turn_id: str | None, owner: str) -> EditSource:
    session = uow.sessions.get(session_id)
    if session is None or session.kind is SessionKind.NOTES or session.owner != owner:
        return EditSource(session_id, turn_id)
    turn = uow.turns.number(session.id, turn_id) if turn_id else None
    return EditSource(session_id, turn_id, True, session.title, turn)
