"""The notes without a session that is forgotten: what others have made of its words goes, and is made anew."""

from __future__ import annotations

from everthread.domain.model import NoteAction, NoteVersion, Session
from everthread.domain.note_origins import Back, Mending, Writing
from everthread.domain.review import Window
from everthread.lifecycle.log import ref_to
from everthread.lifecycle.notes import is_gone, put_version
from everthread.ports.store import UnitOfWork


def mend(uow: UnitOfWork, mending: Mending, session: Session, now: float) -> tuple[str, ...]:
    """Carry it out, once the session's own words are gone; the wordings that went with them."""
    uow.forgetting.scrub_notes(session.owner, mending.tainted)
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
