"""The notes without a session that is forgotten: what others have made of its words goes, and is made anew."""

from __future__ import annotations

from everthread.domain.model import NoteAction, Session
from everthread.domain.note_origins import Mending, Writing
from everthread.domain.review import Window
from everthread.lifecycle.notes import NoteChange, origin, write_note
from everthread.ports.store import UnitOfWork


def mend(uow: UnitOfWork, mending: Mending, session: Session, now: float) -> tuple[str, ...]:
    """Carry it out, once the session's own words are gone; the wordings that went with them."""
    uow.forgetting.scrub_notes(session.owner, mending.tainted)
    for last, before in mending.back:
        ref = origin(uow, before or last)
        if before is None:
            change = NoteChange(NoteAction.REMOVE, last.target, note_id=last.note_id)
        else:
            action = NoteAction.ADD if last.action is NoteAction.REMOVE else NoteAction.REPLACE
            change = NoteChange(action, last.target, before.content, last.note_id, before.turn_id)
        write_note(uow, change, owner=session.owner, ref=ref, new_id="", now=now)
    for writing in mending.writings:
        _review_again(uow, writing, now)
    return tuple({version.content for version in mending.tainted})


def _review_again(uow: UnitOfWork, writing: Writing, now: float) -> None:
    """What it had learnt besides is learnt again. A turn that no review was about is still to come to one."""
    session_id, turn_id = writing
    window = Window.marked(turn_id)
    if window is None and (number := uow.turns.number(session_id, turn_id)) is not None:
        window = Window(number, number)
    if window is not None:
        uow.reviews.begin_anew(session_id, window, now)
