"""Writing a curated note: its version and its log entry at once, under the session it was written in.

Notes and the reviews that write them.

The owner's session for what belongs to no conversation.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

from everthread.domain.errors import AlreadyNoted, BadInput, Gone, NotCondensed, NotesFull, NotFound, TooLarge
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    FORGOTTEN,
    Cause,
    ChatType,
    Kind,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Session,
    SessionKey,
    SessionRef,
    chars_of,
)
from everthread.domain.review_window import Review
from everthread.lifecycle.base import Units
from everthread.lifecycle.event_log import append, close_if_left, ref_to
from everthread.lifecycle.reviews import held, take_review
from everthread.lifecycle.turns import PROCESS_TTL_S
from everthread.lifecycle.validation import check_owner
from everthread.store.unit_of_work import UnitOfWork

NOTE_CHARS_MAX = 20_000


class NoteChange(Struct, frozen=True):
    """What to do to which note. Replacing and removing name one by its id.

    Adding makes a new note; with an id, it brings back the one that was removed.
    """

    action: NoteAction
    target: NoteTarget
    content: str = ""
    note_id: str = ""
    turn_id: str | None = None
    limit_chars: int | None = None
    """How much the collection may hold afterwards."""
    once: bool = False
    """Refuse words that stand in the collection already."""


class Rewriting(Struct, frozen=True):
    """What puts other notes in the place of a whole collection, as it was when that was thought of."""

    target: NoteTarget
    read: tuple[NoteVersion, ...]
    changes: tuple[NoteChange, ...]


def rewrite_notes(
    uow: UnitOfWork, rewriting: Rewriting, *, owner: str, ref: SessionRef, now: float
) -> tuple[NoteVersion, ...]:
    """Carry all of it out. Raises `NotCondensed` if the collection has changed since, or would not be smaller."""
    if uow.notes.current(owner, rewriting.target) != rewriting.read:
        raise NotCondensed("the notes were changed meanwhile")
    written = [write_note(uow, change, owner=owner, ref=ref, new_id="", now=now) for change in rewriting.changes]
    if chars_of(uow.notes.current(owner, rewriting.target)) >= chars_of(rewriting.read):
        raise NotCondensed("the notes would take as much room as before")
    return tuple(written)


def write_note(
    uow: UnitOfWork, change: NoteChange, *, owner: str, ref: SessionRef | None, new_id: str, now: float
) -> NoteVersion:
    """Carry the change out. With no `ref` it concerns the person and no conversation."""
    if len(change.content) > NOTE_CHARS_MAX:
        raise TooLarge(f"a note has at most {NOTE_CHARS_MAX} characters; this one has {len(change.content)}")
    if change.action is not NoteAction.REMOVE and not change.content.strip():
        raise BadInput("a note needs some text")
    if ref is None:
        session, ref = desk(uow, owner, now)
    else:
        session = uow.sessions.get(ref.session_id)
    if session is None or session.owner != owner:
        raise NotFound(f"there is no session {ref.session_id!r}")
    if is_gone(session):
        raise Gone(f"session {session.id!r} was forgotten; nothing more is written to it")
    version = _next_version(uow, change, owner, session.id, new_id, now)
    _check_room(uow, change, version)
    put_version(uow, version, session, ref, now)
    return version


def is_gone(session: Session) -> bool:
    """Whether nothing more may be written to it. An owner's desk goes on, also after the person was forgotten."""
    return session.forgotten_seq is not None and session.ended_at is not None


def put_version(uow: UnitOfWork, version: NoteVersion, session: Session, ref: SessionRef, now: float) -> None:
    """The version and its log entry, whatever the note was before."""
    uow.notes.put(version)
    detail: dict[str, object] = {"note_id": version.note_id, "version": version.version}
    session = append(uow, session, ref, EntryKind.NOTE, now, detail=detail)
    uow.sessions.save(close_if_left(uow, session, ref, now))


def _check_room(uow: UnitOfWork, change: NoteChange, version: NoteVersion) -> None:
    """Looked at where it is written: two that write at once must not both find room for one."""
    if change.action is NoteAction.REMOVE or (change.limit_chars is None and not change.once):
        return
    notes = uow.notes.current(version.owner, version.target)
    others = [note for note in notes if note.note_id != version.note_id]
    if change.once and _words(version) in map(_words, others):
        raise AlreadyNoted("this is noted already")
    before, after = chars_of(notes), chars_of((*others, version))
    # One that was too full before may always be made smaller.
    if change.limit_chars is not None and after > max(change.limit_chars, before - 1):
        raise NotesFull(before, change.limit_chars)


def _words(note: NoteVersion) -> str:
    return " ".join(note.content.split())


def _next_version(
    uow: UnitOfWork, change: NoteChange, owner: str, session_id: str, new_id: str, now: float
) -> NoteVersion:
    if change.action is NoteAction.ADD and not change.note_id:
        return NoteVersion(
            new_id, 1, owner, change.target, change.action, change.content, session_id, change.turn_id, now
        )
    last = uow.notes.get(change.note_id)
    gone = last is None or (last.action is NoteAction.REMOVE) is not (change.action is NoteAction.ADD)
    if last is None or gone or last.owner != owner or uow.erasure.buried("note", change.note_id):
        raise NotFound(f"there is no note {change.note_id!r}")
    content = "" if change.action is NoteAction.REMOVE else change.content
    return NoteVersion(
        last.note_id, last.version + 1, owner, last.target, change.action, content, session_id, change.turn_id, now
    )


def undo_note(uow: UnitOfWork, note_id: str, version: int, *, owner: str, now: float) -> NoteVersion:
    """Take back one change of a note, the last one, by a new version that says what the one before it said."""
    versions = uow.notes.versions(note_id)
    if not any(v.version == version and v.owner == owner for v in versions):
        raise NotFound(f"there is no change {note_id}:{version}")
    if versions[-1].version != version:
        raise BadInput(f"the note was changed again since; take back {note_id}:{versions[-1].version} first")
    last = versions[-1]
    if last.content == FORGOTTEN:
        raise Gone(f"what {note_id}:{version} said was forgotten; there is nothing to take back")
    before = versions[-2] if len(versions) > 1 else None
    if before is None or before.action is NoteAction.REMOVE:
        change = NoteChange(NoteAction.REMOVE, last.target, note_id=note_id)
        return write_note(uow, change, owner=owner, ref=None, new_id="", now=now)
    if before.content == FORGOTTEN:
        raise Gone(f"what the note said before {note_id}:{version} was forgotten; it can't come back")
    action = NoteAction.ADD if last.action is NoteAction.REMOVE else NoteAction.REPLACE
    change = NoteChange(action, last.target, before.content, note_id)
    return write_note(uow, change, owner=owner, ref=_origin(uow, before), new_id="", now=now)


def _origin(uow: UnitOfWork, version: NoteVersion) -> SessionRef | None:
    """Where words were first written: whoever forgets that conversation forgets them too, also if they came back."""
    session = uow.sessions.get(version.session_id)
    if session is None or session.kind is Kind.NOTES:
        return None
    return ref_to(session, session.key, 0)


class NoteUnits(Units):
    """Changes of notes, each under whoever asks for it."""

    async def write_note(
        self, change: NoteChange, *, owner: str, ref: SessionRef | None = None, review: Review | None = None
    ) -> NoteVersion:
        """Carry the change out. Raises `Fenced` for one of a `review` that is not to be carried out any more."""
        check_owner(owner)

        def write(uow: UnitOfWork) -> NoteVersion:
            if review is not None:
                held(uow, review, owner)
            return write_note(uow, change, owner=owner, ref=ref, new_id=self._new_id(), now=self._clock.now())

        return await self._store.write(write)

    async def rewrite_notes(
        self, rewriting: Rewriting, *, owner: str, ref: SessionRef, review: Review
    ) -> tuple[NoteVersion, ...]:
        """Put what a review has condensed in the place of a whole collection, all at once or not at all.

        Raises `NotCondensed` if the notes were changed meanwhile, `Fenced` as `write_note` does.
        """
        check_owner(owner)

        def write(uow: UnitOfWork) -> tuple[NoteVersion, ...]:
            held(uow, review, owner)
            return rewrite_notes(uow, rewriting, owner=owner, ref=ref, now=self._clock.now())

        return await self._store.write(write)

    async def undo_note(self, note_id: str, version: int, *, owner: str) -> NoteVersion:
        """Take back a note's last change; raises `BadInput` if the one that is named is not the last any more."""
        return await self._store.write(lambda uow: undo_note(uow, note_id, version, owner=owner, now=self._clock.now()))

    async def take_review(self) -> tuple[Review, SessionRef] | None:
        """The next review that is due, for this process alone, and the session that it is about."""

        def take(uow: UnitOfWork) -> tuple[Review, SessionRef] | None:
            now = self._clock.now()
            uow.leases.keep_alive(self._holder, now, PROCESS_TTL_S)
            return take_review(uow, self._holder, now)

        return await self._store.write(take)


def desk(uow: UnitOfWork, owner: str, now: float) -> tuple[Session, SessionRef]:
    """Made on first use."""
    session_id = f"notes:{owner}"
    key = SessionKey("main", "notes", ChatType.DM, hashlib.sha256(owner.encode()).hexdigest()[:32])
    session = uow.sessions.get(session_id)
    if session is None:
        session = Session(session_id, owner, key, Kind.NOTES, Cause.NEW, opened_at=now, active_at=now)
        uow.sessions.add(session)
    return session, ref_to(session, key, 0)
