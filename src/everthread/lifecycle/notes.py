"""Write curated notes. A new version and its log entry are written together, in the session it was written in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import (
    BadInput,
    DuplicateNote,
    Erased,
    NotCondensed,
    NotesFull,
    NotFound,
    Outdated,
    TooLarge,
)
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    FORGOTTEN,
    Cause,
    ChatType,
    NoteAction,
    NoteAuthor,
    NoteTarget,
    NoteVersion,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
    count_chars,
)
from everthread.domain.note_provenance import NOTES_SESSION, author_of
from everthread.domain.review_window import Review, ReviewState
from everthread.lifecycle.base import LifecycleBase, transaction
from everthread.lifecycle.boundaries import append, close_if_left
from everthread.lifecycle.quotas import check_note
from everthread.lifecycle.reviews import check_held, check_review, claim_review
from everthread.lifecycle.turns import PROCESS_TTL_S
from everthread.lifecycle.validation import check_owner
from everthread.store.derived_text import WRITTEN, NoteSource
from everthread.store.recall_scope import chat_of_note, chat_of_turn
from everthread.store.unit_of_work import UnitOfWork

NOTE_CHARS_MAX = 20_000


class NoteChange(Struct, frozen=True):
    """A change of one note. Replacing and removing name the note by its id.

    Adding creates a note; with an id, it restores the note that was removed.
    """

    action: NoteAction
    target: NoteTarget
    content: str = ""
    note_id: str = ""
    turn_id: str | None = None
    limit_chars: int | None = None
    """Largest size of the collection after the change."""
    once: bool = False
    """Refuse text that the collection contains already."""
    author: NoteAuthor | None = None
    """`None`: the turn or review that `turn_id` names, or else the owner."""
    imported: bool = False
    """Read from a file, which may still contain forgotten facts: they are erased, unless they were noted again."""


class NoteRewrite(Struct, frozen=True):
    """Changes that replace a whole collection, and the collection that they were made from."""

    target: NoteTarget
    read: tuple[NoteVersion, ...]
    changes: tuple[NoteChange, ...]


class NoteOperations(LifecycleBase):
    """Change notes, and claim the reviews that do so."""

    @transaction
    def write_note(
        self,
        uow: UnitOfWork,
        change: NoteChange,
        *,
        owner: str,
        ref: SessionRef | None = None,
        review: Review | None = None,
    ) -> NoteVersion:
        """Apply a change. Without `ref` the note belongs to the person and to no conversation.

        Raises `Fenced` for a `review` that may not write any more, `Outdated` for a review or a running turn during
        which something was forgotten, `StorageQuotaReached` for a person who may not store more.
        """
        check_owner(owner)
        if review is not None:
            check_held(uow, review)
        if change.action is not NoteAction.REMOVE:
            check_note(uow, self._quotas, owner)
        source = NoteSource(review.forget_count) if review is not None else NoteSource(turn_id=change.turn_id)
        return write_note(uow, change, source, owner=owner, ref=ref, new_id=self._new_id(), now=self._clock.now())

    async def check_turn(self, turn_id: str, session_id: str = "") -> None:
        """Raise `Outdated` if something was forgotten while the turn ran: text derived by it must not be stored."""

        def check(uow: UnitOfWork) -> None:
            uow.derived.check_turn(turn_id)
            session = uow.sessions.get(session_id)
            if session is not None and session.forgotten_seq is not None:
                raise Outdated("this conversation was forgotten while the turn ran; nothing of it is stored")

        await self._store.read(check)

    @transaction
    def rewrite_notes(
        self, uow: UnitOfWork, rewriting: NoteRewrite, *, owner: str, ref: SessionRef, review: Review
    ) -> tuple[NoteVersion, ...]:
        """Replace a whole collection with what a review condensed from it, or change nothing.

        Raises `NotCondensed` if the collection changed meanwhile or would not shrink, `Fenced` and `Outdated` like
        `write_note`.
        """
        check_owner(owner)
        check_review(uow, review, owner)
        if uow.notes.current(owner, rewriting.target) != rewriting.read:
            raise NotCondensed("the notes were changed meanwhile")
        now, source = self._clock.now(), NoteSource(review.forget_count)
        written = [
            write_note(uow, change, source, owner=owner, ref=ref, new_id="", now=now) for change in rewriting.changes
        ]
        if count_chars(uow.notes.current(owner, rewriting.target)) >= count_chars(rewriting.read):
            raise NotCondensed("the new notes would not be shorter")
        return tuple(written)

    @transaction
    def undo_note(self, uow: UnitOfWork, note_id: str, version: int, *, owner: str) -> NoteVersion:
        """Undo the last change of a note by a new version with the previous content.

        Raises `BadInput` if `version` is not the last change any more.
        """
        versions, now = uow.notes.versions(note_id), self._clock.now()
        if not any(v.version == version and v.owner == owner for v in versions):
            raise NotFound(f"there is no change {note_id}:{version}")
        if versions[-1].version != version:
            raise BadInput(f"the note was changed again since; undo {note_id}:{versions[-1].version} first")
        last = versions[-1]
        if last.content == FORGOTTEN:
            raise Erased(f"the text of {note_id}:{version} was forgotten; there is nothing to undo")
        before = versions[-2] if len(versions) > 1 else None
        if before is None or before.action is NoteAction.REMOVE:
            change = NoteChange(NoteAction.REMOVE, last.target, note_id=note_id)
            return write_note(uow, change, WRITTEN, owner=owner, ref=None, new_id="", now=now)
        check_note(uow, self._quotas, owner)
        if before.content == FORGOTTEN:
            raise Erased(f"the text before {note_id}:{version} was forgotten; it can't be restored")
        action = NoteAction.ADD if last.action is NoteAction.REMOVE else NoteAction.REPLACE
        # The text keeps its author: an undo shows nothing new to the person who asks for it.
        change = NoteChange(action, last.target, before.content, note_id, author=author_of(before))
        return write_note(uow, change, WRITTEN, owner=owner, ref=_origin(uow, before), new_id="", now=now)

    @transaction
    def claim_next_review(self, uow: UnitOfWork) -> tuple[Review, SessionRef] | None:
        """Claim the next due review for this process. Returns it with the session that it is about."""
        now = self._clock.now()
        uow.leases.keep_alive(self._holder, now, PROCESS_TTL_S)
        return claim_review(uow, self._holder, now)

    @transaction
    def end_review(
        self,
        uow: UnitOfWork,
        review: Review,
        state: ReviewState,
        due_at: float = 0.0,
        *,
        ref: SessionRef,
        write_result: Callable[[UnitOfWork], None] = lambda uow: None,
    ) -> bool:
        """Record the outcome of a review; `write_result` writes to the store in the same transaction.

        Its notes did not close a session that all keys have left. The end of the review does, once. A review that
        waits for another attempt leaves that to the last one, in whatever process. Returns False, and changes nothing
        of the review, if this process does not hold it any more.
        """
        held = uow.reviews.end(review, state, due_at)
        session = uow.sessions.get(review.session_id)
        if held and state is not ReviewState.WAITING and session is not None and session.dirty:
            uow.sessions.save(close_if_left(uow, session, ref, self._clock.now()))
        write_result(uow)
        return held


def write_note(
    uow: UnitOfWork,
    change: NoteChange,
    source: NoteSource,
    *,
    owner: str,
    ref: SessionRef | None,
    new_id: str,
    now: float,
) -> NoteVersion:
    """Apply a change inside a transaction. Without `ref` the note belongs to the person and to no conversation."""
    if len(change.content) > NOTE_CHARS_MAX:
        raise TooLarge(f"a note has at most {NOTE_CHARS_MAX} characters; this one has {len(change.content)}")
    if change.action is not NoteAction.REMOVE and not change.content.strip():
        raise BadInput("the note is empty; write some text")
    if ref is None:
        session, ref = notes_session(uow, owner, now)
    else:
        session = uow.sessions.get(ref.session_id)
    if session is None or session.owner != owner:
        raise NotFound(f"there is no session {ref.session_id!r}")
    if is_erased(session):
        raise Erased(f"session {session.id!r} was forgotten; no note can be added to it")
    if change.imported:
        # Only the person at this machine can edit its files.
        content = _without_forgotten_facts(uow, change.content, owner)
        change = replace(change, content=content, author=NoteAuthor.OPERATOR)
    version = _next_version(uow, change, owner, session.id, new_id, now)
    _check_room(uow, change, version, chat_of_turn(uow, ref))
    return put_version(uow, version, source, session, ref, now)


def _without_forgotten_facts(uow: UnitOfWork, content: str, owner: str) -> str:
    noted = [note.content for target in NoteTarget for note in uow.notes.current(owner, target)]
    erased = uow.erasure.erase_facts_not_noted_again(content, owner, noted)
    if erased.strip() == FORGOTTEN != content.strip():
        raise Erased("this note was forgotten meanwhile and is not imported")
    return erased


def is_erased(session: Session) -> bool:
    """Return True if no note may be added to the session. A notes session stays open after its owner was forgotten."""
    return session.forgotten_seq is not None and session.ended_at is not None


def put_version(
    uow: UnitOfWork, version: NoteVersion, source: NoteSource, session: Session, ref: SessionRef, now: float
) -> NoteVersion:
    """Write a version and its log entry."""
    version = replace(version, author=author_of(version), chat=chat_of_note(uow, session, ref))
    uow.derived.put_note(version, source)
    detail: dict[str, object] = {"note_id": version.note_id, "version": version.version}
    session = append(uow, session, ref, EntryKind.NOTE, now, detail=detail)
    # The end of a review closes its session once, after all of its notes.
    uow.sessions.save(session if source.is_review else close_if_left(uow, session, ref, now))
    return version


def notes_session(uow: UnitOfWork, owner: str, now: float) -> tuple[Session, SessionRef]:
    """Return the owner's session for notes that belong to no conversation; create it on first use."""
    session_id = f"{NOTES_SESSION}{owner}"
    key = SessionKey("main", "notes", ChatType.DM, hashlib.sha256(owner.encode()).hexdigest()[:32])
    session = uow.sessions.get(session_id)
    if session is None:
        session = Session(session_id, owner, key, SessionKind.NOTES, Cause.NEW, opened_at=now, active_at=now)
        uow.sessions.add(session)
    return session, session.ref_at(key, 0)


def _check_room(uow: UnitOfWork, change: NoteChange, version: NoteVersion, chat: str | None) -> None:
    """Check the collection's size in the transaction that writes, so that two writers can't share the same room."""
    if change.action is NoteAction.REMOVE or (change.limit_chars is None and not change.once):
        return
    notes = uow.notes.current(version.owner, version.target)
    others = [note for note in notes if note.note_id != version.note_id]
    # In a group chat, the refusal would tell that there is a private note with these words.
    comparable = [note for note in others if chat is None or note.chat == chat]
    if change.once and _words(version) in map(_words, comparable):
        raise DuplicateNote("this note exists already")
    before, after = count_chars(notes), count_chars((*others, version))
    # A collection that was too large before may always shrink.
    if change.limit_chars is not None and after > max(change.limit_chars, before - 1):
        raise NotesFull(before, change.limit_chars)


def _words(note: NoteVersion) -> str:
    return " ".join(note.content.split())


def _next_version(
    uow: UnitOfWork, change: NoteChange, owner: str, session_id: str, new_id: str, now: float
) -> NoteVersion:
    if change.action is NoteAction.ADD and not change.note_id:
        return NoteVersion(
            *(new_id, 1, owner, change.target, change.action, change.content, session_id, change.turn_id, now),
            change.author,
        )
    last = uow.notes.get(change.note_id)
    missing = last is None or (last.action is NoteAction.REMOVE) is not (change.action is NoteAction.ADD)
    if last is None or missing or last.owner != owner or uow.erasure.has_tombstone("note", change.note_id):
        raise NotFound(f"there is no note {change.note_id!r}")
    content = "" if change.action is NoteAction.REMOVE else change.content
    return NoteVersion(
        *(last.note_id, last.version + 1, owner, last.target, change.action, content, session_id, change.turn_id, now),
        change.author,
    )


def _origin(uow: UnitOfWork, version: NoteVersion) -> SessionRef | None:
    """Return the conversation in which a text was first written, so that forgetting it also erases a restored note."""
    session = uow.sessions.get(version.session_id)
    if session is None or session.kind is SessionKind.NOTES:
        return None
    return session.ref_at(session.key, 0)
