"""Forgetting a session, a person or a fact: one transaction, and a tombstone against its return.

The notes without a session that is forgotten: what others have made of its words goes, and is made anew.
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

from everthread.domain.boundary import Forget
from everthread.domain.errors import NotFound
from everthread.domain.events import EntryKind, ForgetScope
from everthread.domain.model import FORGOTTEN, Cause, InboxState, Kind, NoteAction, NoteVersion, Session
from everthread.domain.note_provenance import Back, Mending, Writing, without
from everthread.domain.review_window import Window
from everthread.lifecycle.base import WriteContext
from everthread.lifecycle.boundaries import cross, owned
from everthread.lifecycle.event_log import append, ref_to
from everthread.lifecycle.notes import desk, is_gone, put_version
from everthread.store.unit_of_work import UnitOfWork


class ForgetSession(Struct, frozen=True):
    session_id: str


class ForgetOwner(Struct, frozen=True):
    """A person, with every session and note of theirs."""


class ForgetFact(Struct, frozen=True):
    """One note, in all its versions, and its words wherever they stand among what the owner has stored."""

    note_id: str


Forgettable = ForgetSession | ForgetOwner | ForgetFact


def forget(uow: UnitOfWork, what: Forgettable, owner: str, setting: WriteContext) -> int:
    """Forget it; the number of sessions and notes concerned."""
    # What is taken out of the index must be in it: what comes to it later would bring the words back.
    uow.search.index()
    match what:
        case ForgetSession(session_id):
            _forget_session(uow, owned(uow, session_id, owner), setting)
            return 1
        case ForgetOwner():
            return _forget_owner(uow, owner, setting)
        case ForgetFact(note_id):
            _forget_fact(uow, note_id, owner, setting)
            return 1


def fact_identity(owner: str, text: str) -> str:
    """What a tombstone keeps of a fact: enough to know it again, too little to read it."""
    return hashlib.sha256(f"{owner}\0{' '.join(text.casefold().split())}".encode()).hexdigest()


def _forget_session(uow: UnitOfWork, session: Session, setting: WriteContext, *, notes_stay: bool = True) -> None:
    """`notes_stay`: those that its words stand in go back to what they said without them."""
    keys = uow.sessions.keys_on(session.id)
    if keys:
        cross(uow, keys[0], Forget(session.id), session.owner, setting)
    mending = without(session.id, uow.notes.of_owner(session.owner)) if notes_stay else Mending()
    wordings = uow.erasure.scrub_session(session)
    _bury_facts(uow, wordings + mend(uow, mending, session, setting.now), session.owner, setting.now)
    for slot in uow.slots.of_session(session.id):
        uow.slots.drop(slot.turn_id)
        uow.inbox.end_turn(slot.ref.key, slot.turn_id, InboxState.SET_ASIDE)
    uow.erasure.scrub_descendants(session, tuple(child.id for child in uow.sessions.descendants(session.id)))
    session = uow.sessions.get(session.id) or session
    if session.ended_at is None:
        session = session.ended("forgotten", setting.now)
        uow.sessions.renew(session)
    _tell_providers(uow, session, {"scope": ForgetScope.SESSION.value}, setting.now, hides_the_rest=True)
    uow.erasure.bury("session", session.id, session.owner, setting.now)
    for child in uow.sessions.descendants(session.id):
        # What it handed over was asked for in its own words, and answered to it alone.
        if child.cause is Cause.DELEGATION and child.parent_id == session.id and child.forgotten_seq is None:
            _forget_session(uow, child, setting, notes_stay=notes_stay)


def _forget_owner(uow: UnitOfWork, owner: str, setting: WriteContext) -> int:
    sessions = [s for s in uow.sessions.of_owner(owner) if s.kind is not Kind.NOTES and s.forgotten_seq is None]
    for session in sessions:
        # Delegated work is forgotten with the session that handed it over.
        if (left := uow.sessions.get(session.id)) is not None and left.forgotten_seq is None:
            _forget_session(uow, left, setting, notes_stay=False)
    _bury_facts(uow, uow.erasure.scrub_owner(owner), owner, setting.now)
    session, _ = desk(uow, owner, setting.now)
    _tell_providers(uow, session, {"scope": ForgetScope.OWNER.value}, setting.now, hides_the_rest=True)
    uow.erasure.bury("owner", owner, owner, setting.now)
    return len(sessions)


def _forget_fact(uow: UnitOfWork, note_id: str, owner: str, setting: WriteContext) -> None:
    note = uow.notes.get(note_id)
    if note is None or note.owner != owner or uow.erasure.buried("note", note_id):
        raise NotFound(f"there is no note {note_id!r}")
    wordings = tuple(text for text in uow.erasure.scrub_fact(note_id, owner) if text != FORGOTTEN)
    if not wordings:
        raise NotFound(f"there is no note {note_id!r}")
    _bury_facts(uow, wordings, owner, setting.now)
    uow.erasure.bury("note", note_id, owner, setting.now)
    session, _ = desk(uow, owner, setting.now)
    # The last version of a note that was removed, or written in a forgotten session, has no words left of its own.
    text = note.content if note.content in wordings else wordings[0]
    detail: dict[str, object] = {"scope": ForgetScope.FACT.value, "note_id": note_id, "text": text}
    _tell_providers(uow, session, detail, setting.now, hides_the_rest=False)


def _bury_facts(uow: UnitOfWork, wordings: tuple[str, ...], owner: str, now: float) -> None:
    """A note's file may outlive it, here or in a backup: its words are known again when they are imported."""
    for wording in wordings:
        uow.erasure.bury("fact", fact_identity(owner, wording), owner, now)


def _tell_providers(
    uow: UnitOfWork, session: Session, detail: dict[str, object], now: float, *, hides_the_rest: bool
) -> None:
    """One more log entry: it comes behind whatever is on its way, and what waits before it may be passed over."""
    session = append(uow, session, ref_to(session, session.key, 0), EntryKind.FORGET, now, detail=detail)
    if hides_the_rest:
        session = session.but(forgotten_seq=session.log_seq, closed_seq=session.log_seq)
    uow.sessions.save(session)
    # With no provider to tell, the entry need not keep the fact's words.
    uow.erasure.told(session.id, session.log_seq)


def mend(uow: UnitOfWork, mending: Mending, session: Session, now: float) -> tuple[str, ...]:
    """Carry it out, once the session's own words are gone; the wordings that went with them."""
    uow.erasure.scrub_notes(session.owner, mending.tainted)
    for back in mending.back:
        _put_back(uow, back, now)
    for writing in mending.writings:
        _review_again(uow, writing, now)
    return tuple({version.content for version in mending.tainted})


def _put_back(uow: UnitOfWork, back: Back, now: float) -> None:
    """In the session that the words come from: whoever forgets that one forgets them too. A removal is told where the
    note was told last; of a session that is forgotten, everybody is told that instead.
    """
    places = (back.to.session_id,) if back.to else back.places
    there = [session for place in places if (session := uow.sessions.get(place)) and not is_gone(session)]
    for session in there[:1]:
        removed, last = back.last.action is NoteAction.REMOVE, back.last
        action = NoteAction.REMOVE if back.to is None else NoteAction.ADD if removed else NoteAction.REPLACE
        content, turn_id = (back.to.content, back.to.turn_id) if back.to else ("", None)
        version = NoteVersion(
            last.note_id, last.version + 1, last.owner, last.target, action, content, session.id, turn_id, now
        )
        put_version(uow, version, session, ref_to(session, session.key, 0), now)


def _review_again(uow: UnitOfWork, writing: Writing, now: float) -> None:
    """What it had learnt besides is learnt again. A turn that no review was about is still to come to one."""
    session_id, turn_id = writing
    window = Window.marked(turn_id)
    if window is None and (number := uow.turns.number(session_id, turn_id)) is not None:
        window = Window(number, number)
    if window is not None:
        uow.reviews.begin_anew(session_id, window, now)
