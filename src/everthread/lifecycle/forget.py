"""Forget a session, a person or a fact: one transaction that erases text and adds tombstones.

A tombstone keeps replay and import from restoring the text. A note that contains text of a forgotten session is
restored to its text without it, and the review that wrote it runs again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from everthread.domain.boundary import Forget
from everthread.domain.errors import NotFound
from everthread.domain.events import EntryKind, ForgetScope
from everthread.domain.forgotten_words import fact_identity
from everthread.domain.model import (
    FORGOTTEN,
    Cause,
    InboxState,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Session,
    SessionKind,
)
from everthread.domain.note_provenance import NoteRepair, NoteRestore, Writing, author_of, plan_repair
from everthread.domain.review_window import ReviewWindow
from everthread.lifecycle.base import WriteContext
from everthread.lifecycle.boundaries import append, cross
from everthread.lifecycle.boundary_state import owned_session
from everthread.lifecycle.notes import is_erased, notes_session, put_version
from everthread.log_erasure import LineFilter
from everthread.store.derived_text import WRITTEN
from everthread.store.notes import digest
from everthread.store.recalled import QuotingTurn
from everthread.store.unit_of_work import UnitOfWork


class ForgetSession(Struct, frozen=True):
    """A session, with the work that it delegated."""

    session_id: str


class ForgetOwner(Struct, frozen=True):
    """The owner, with every session and note."""


class ForgetFact(Struct, frozen=True):
    """One note in all its versions, and its text wherever else the owner's data contains it."""

    note_id: str


Forgettable = ForgetSession | ForgetOwner | ForgetFact


def forget(uow: UnitOfWork, what: Forgettable, owner: str, context: WriteContext, *, quoted: bool = False) -> int:
    """Forget inside a transaction. Returns the number of sessions or notes that were erased.

    With `quoted`, erases the answers of `quoting_turns` too, also if a session was forgotten before.
    """
    # Index everything first: text that is indexed after its removal would come back.
    uow.search.index()
    files = {target: uow.notes.file_digest(owner, target) for target in NoteTarget}
    quoting = quoting_turns(uow, what, owner) if quoted else ()
    is_done = quoted and isinstance(what, ForgetSession) and _was_forgotten(uow, what.session_id, owner)
    count = 0 if is_done else _forget(uow, what, owner, context)
    _forget_answers(uow, quoting, owner, context.now)
    for target, digests in files.items():
        if digests and uow.notes.file_digest(owner, target) is None:
            # Until the file is rewritten, keep the digest of the whole file, so that it is not imported as an edit, and
            # those of the notes that remain, so that a note that was removed from the file is not restored.
            whole, *entries = digests.split()
            remaining = {digest(note.content.strip()) for note in uow.notes.current(owner, target)}
            kept = " ".join((whole, *(entry for entry in entries if entry in remaining)))
            uow.notes.set_file_digest(owner, target, kept)
    return count


def _forget(uow: UnitOfWork, what: Forgettable, owner: str, context: WriteContext) -> int:
    match what:
        case ForgetSession(session_id):
            _forget_session(uow, owned_session(uow, session_id, owner), context)
            return 1
        case ForgetOwner():
            return _forget_owner(uow, owner, context)
        case ForgetFact(note_id):
            _forget_fact(uow, note_id, owner, context)
            return 1


def forgotten_texts(uow: UnitOfWork, what: Forgettable, owner: str) -> tuple[str, ...]:
    """Return the texts that are erased word for word: those of a fact."""
    note = uow.notes.get(what.note_id) if isinstance(what, ForgetFact) else None
    return uow.erasure.scrubber.note_texts(note.note_id, owner) if note is not None and note.owner == owner else ()


def forgotten_lines(uow: UnitOfWork, what: Forgettable, owner: str) -> LineFilter:
    """Return whose lines leave the log, after the request was carried out. For a fact: those that may contain it."""
    match what:
        case ForgetSession(session_id):
            delegated = [s.id for s in uow.sessions.descendants(session_id) if s.cause is Cause.DELEGATION]
            forgotten = [s.id for s in map(uow.sessions.get, delegated) if s is not None and is_erased(s)]
            session = uow.sessions.get(session_id)
            named = frozenset({str(session.key), session.owner}) if session is not None else frozenset[str]()
            return LineFilter(frozenset({session_id, *forgotten}), named=named)
        case ForgetOwner() | ForgetFact():
            sessions = uow.sessions.of_owner(owner)
            keys = frozenset(str(session.key) for session in sessions)
            return LineFilter(frozenset(session.id for session in sessions), owner, keys)


def quoting_turns(uow: UnitOfWork, what: Forgettable, owner: str) -> tuple[QuotingTurn, ...]:
    """Return the owner's turns elsewhere that were shown recall of what is forgotten, and may quote it in other words.

    Call it before the words are erased: a fact is also recalled by the turns that contain it.
    """
    match what:
        case ForgetSession():
            sessions = forgotten_sessions(uow, what, owner)
            notes = [note for session_id in sessions for note in uow.notes.written_in(session_id)]
            return uow.recalled.quoting(owner, sessions=sessions, notes=notes)
        case ForgetFact(note_id):
            turns = uow.erasure.scrubber.turns_with(owner, forgotten_texts(uow, what, owner))
            return uow.recalled.quoting(owner, turns=turns, notes=(note_id,))
        case ForgetOwner():
            return ()


def _was_forgotten(uow: UnitOfWork, session_id: str, owner: str) -> bool:
    session = uow.sessions.get(session_id)
    return session is not None and session.owner == owner and session.forgotten_seq is not None


def _forget_answers(uow: UnitOfWork, turns: Sequence[QuotingTurn], owner: str, now: float) -> None:
    """Erase the answers of these turns, with the prompts, summaries and titles that derive from them."""
    uow.erasure.scrubber.scrub_answers(turns)
    for session_id in dict.fromkeys(turn.session_id for turn in turns):
        session = uow.sessions.get(session_id)
        if session is not None:
            family = (session.id, *(child.id for child in uow.sessions.descendants(session.id)))
            uow.erasure.scrubber.scrub_descendants(session, family)
            # Prompts that are cached or being built are made again.
            uow.erasure.add_tombstone("answers", session.id, owner, now)


def forgotten_sessions(uow: UnitOfWork, what: Forgettable, owner: str) -> tuple[str, ...]:
    """Return the sessions that are erased whole: the named one with the work that it delegated, or all of the owner."""
    match what:
        case ForgetSession(session_id):
            session = uow.sessions.get(session_id)
            return _with_delegated_work(uow, session) if session is not None and session.owner == owner else ()
        case ForgetOwner():
            return tuple(session.id for session in uow.sessions.of_owner(owner))
        case ForgetFact():
            return ()


def _with_delegated_work(uow: UnitOfWork, session: Session) -> tuple[str, ...]:
    children = [
        child
        for child in uow.sessions.descendants(session.id)
        if child.parent_id == session.id and child.cause is Cause.DELEGATION
    ]
    return (session.id, *(each for child in children for each in _with_delegated_work(uow, child)))


def is_forgotten(uow: UnitOfWork, owner: str, text: str) -> bool:
    """Return whether the text is that of a forgotten fact, or just `[forgotten]`. It must not become a note again."""
    return text.strip() == FORGOTTEN or uow.erasure.has_tombstone("fact", fact_identity(owner, text))


def _forget_session(uow: UnitOfWork, session: Session, context: WriteContext, *, repair_notes: bool = True) -> None:
    """Erase one session. With `repair_notes`, notes that contain its text are restored to their text without it."""
    keys = uow.sessions.keys_on(session.id)
    if keys:
        cross(uow, keys[0], Forget(session.id), session.owner, context)
    repair = plan_repair(session.id, uow.notes.of_owner(session.owner)) if repair_notes else NoteRepair()
    texts = uow.erasure.scrubber.scrub_session(session, operator=context.operator)
    _add_tombstones(uow, texts + _apply_repair(uow, repair, session, context.now), session.owner, context.now)
    for slot in uow.slots.of_session(session.id):
        uow.slots.drop(slot.turn_id)
        uow.inbox.end_turn(slot.ref.key, slot.turn_id, InboxState.SET_ASIDE)
    uow.erasure.scrubber.scrub_descendants(session, tuple(child.id for child in uow.sessions.descendants(session.id)))
    session = uow.sessions.get(session.id) or session
    if session.ended_at is None:
        session = session.ended("forgotten", context.now)
        uow.sessions.renew(session)
    _notify_providers(uow, session, {"scope": ForgetScope.SESSION.value}, context.now, hide_session=True)
    uow.erasure.add_tombstone("session", session.id, session.owner, context.now)
    for child in uow.sessions.descendants(session.id):
        # Delegated work repeats the text of the session that asked for it.
        if child.cause is Cause.DELEGATION and child.parent_id == session.id and child.forgotten_seq is None:
            _forget_session(uow, child, context, repair_notes=repair_notes)


def _forget_owner(uow: UnitOfWork, owner: str, context: WriteContext) -> int:
    sessions = [s for s in uow.sessions.of_owner(owner) if s.kind is not SessionKind.NOTES and s.forgotten_seq is None]
    for session in sessions:
        # Delegated work is forgotten together with the session that delegated it.
        if (left := uow.sessions.get(session.id)) is not None and left.forgotten_seq is None:
            _forget_session(uow, left, context, repair_notes=False)
    _add_tombstones(uow, uow.erasure.scrubber.scrub_owner(owner), owner, context.now)
    session, _ = notes_session(uow, owner, context.now)
    _notify_providers(uow, session, {"scope": ForgetScope.OWNER.value}, context.now, hide_session=True)
    uow.erasure.add_tombstone("owner", owner, owner, context.now)
    return len(sessions)


def _forget_fact(uow: UnitOfWork, note_id: str, owner: str, context: WriteContext) -> None:
    note = uow.notes.get(note_id)
    if note is None or note.owner != owner or uow.erasure.has_tombstone("note", note_id):
        raise NotFound(f"there is no note {note_id!r}")
    texts = uow.erasure.scrubber.scrub_fact(note_id, owner)
    if not texts:
        raise NotFound(f"there is no note {note_id!r}")
    uow.erasure.scrubber.mark_turns(owner, texts)
    _add_tombstones(uow, texts, owner, context.now)
    uow.erasure.add_tombstone("note", note_id, owner, context.now)
    session, _ = notes_session(uow, owner, context.now)
    # The last version has no text if the note was removed or written in a forgotten session.
    text = note.content if note.content in texts else texts[0]
    detail: dict[str, object] = {"scope": ForgetScope.FACT.value, "note_id": note_id, "text": text}
    _notify_providers(uow, session, detail, context.now, hide_session=False)


def _add_tombstones(uow: UnitOfWork, texts: tuple[str, ...], owner: str, now: float) -> None:
    """Add tombstones of texts, because a note file or a backup that still contains them may be imported."""
    for text in texts:
        marks = uow.erasure.scrubber.marks(owner, text)
        uow.erasure.add_tombstone("fact", fact_identity(owner, text), owner, now, marks)


def _notify_providers(
    uow: UnitOfWork, session: Session, detail: dict[str, object], now: float, *, hide_session: bool
) -> None:
    """Append a FORGET entry. Delivery skips the entries before it that providers did not get yet."""
    session = append(uow, session, session.ref_at(session.key, 0), EntryKind.FORGET, now, detail=detail)
    if hide_session:
        session = session.replace(forgotten_seq=session.log_seq, closed_seq=session.log_seq)
    uow.sessions.save(session)
    # Without a provider, the entry need not keep the text of the fact.
    uow.erasure.remove_delivered_request_text(session.id, session.log_seq)


def _apply_repair(uow: UnitOfWork, repair: NoteRepair, session: Session, now: float) -> tuple[str, ...]:
    """Correct the notes after the session's own text was erased. Returns the texts that were erased from them."""
    uow.erasure.scrubber.scrub_notes(session.owner, repair.tainted)
    for restore in repair.restores:
        _restore_note(uow, restore, now)
    for writing in repair.writings:
        _review_again(uow, writing, now)
    return tuple({version.content for version in repair.tainted})


def _restore_note(uow: UnitOfWork, restore: NoteRestore, now: float) -> None:
    """Write the earlier version of a note in the session that its text comes from, so that forgetting that session
    erases it too. A removal is logged in the session of the last version.
    """
    places = (restore.to.session_id,) if restore.to else restore.places
    remaining = [session for place in places if (session := uow.sessions.get(place)) and not is_erased(session)]
    for session in remaining[:1]:
        removed, last = restore.last.action is NoteAction.REMOVE, restore.last
        action = NoteAction.REMOVE if restore.to is None else NoteAction.ADD if removed else NoteAction.REPLACE
        content, turn_id = (restore.to.content, restore.to.turn_id) if restore.to else ("", None)
        version = NoteVersion(
            *(last.note_id, last.version + 1, last.owner, last.target, action, content, session.id, turn_id, now),
            author_of(restore.to) if restore.to else None,
        )
        put_version(uow, version, WRITTEN, session, session.ref_at(session.key, 0), now)


def _review_again(uow: UnitOfWork, writing: Writing, now: float) -> None:
    """Run a review again for what it had learned from other sessions. A turn without a review gets one later anyway."""
    session_id, turn_id = writing
    window = ReviewWindow.from_mark(turn_id)
    if window is None and (number := uow.turns.number(session_id, turn_id)) is not None:
        window = ReviewWindow(number, number)
    if window is not None:
        uow.reviews.restart(session_id, window, now)
