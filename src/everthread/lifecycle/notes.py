"""Writing a curated note: its version and its log entry at once, under the session it was written in."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.domain.errors import AlreadyNoted, BadInput, Gone, NotesFull, NotFound, TooLarge
from everthread.domain.events import EntryKind
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, SessionRef, chars_of
from everthread.lifecycle.forget import desk
from everthread.lifecycle.log import append, close_if_left
from everthread.ports.store import UnitOfWork

NOTE_CHARS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class NoteChange:
    """What to do to which note. Adding makes a new note; replacing and removing name one by its id."""

    action: NoteAction
    target: NoteTarget
    content: str = ""
    note_id: str = ""
    turn_id: str | None = None
    limit_chars: int | None = None
    """How much the collection may hold afterwards."""
    once: bool = False
    """Refuse words that stand in the collection already."""


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
    if session.forgotten_seq is not None and session.ended_at is not None:
        raise Gone(f"session {session.id!r} was forgotten; nothing more is written to it")
    version = _next_version(uow, change, owner, session.id, new_id, now)
    _check_room(uow, change, version)
    uow.notes.put(version)
    detail: dict[str, object] = {"note_id": version.note_id, "version": version.version}
    session = append(uow, session, ref, EntryKind.NOTE, now, detail=detail)
    uow.sessions.save(close_if_left(uow, session, ref, now))
    return version


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
    if change.action is NoteAction.ADD:
        return NoteVersion(
            new_id, 1, owner, change.target, change.action, change.content, session_id, change.turn_id, now
        )
    last = uow.notes.get(change.note_id)
    gone = last is None or last.action is NoteAction.REMOVE or uow.forgetting.buried("note", change.note_id)
    if last is None or gone or last.owner != owner:
        raise NotFound(f"there is no note {change.note_id!r}")
    content = "" if change.action is NoteAction.REMOVE else change.content
    return NoteVersion(
        last.note_id, last.version + 1, owner, last.target, change.action, content, session_id, change.turn_id, now
    )
