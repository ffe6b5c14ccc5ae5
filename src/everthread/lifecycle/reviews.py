"""Which turns are to be reviewed: written down with the turn or the boundary that makes them due, and taken once."""

from __future__ import annotations

from everthread.domain.errors import Fenced
from everthread.domain.model import Kind, Session, SessionRef
from everthread.domain.review_window import Review, Window, due, rest
from everthread.lifecycle.event_log import ref_to
from everthread.store.unit_of_work import UnitOfWork


def note_full(uow: UnitOfWork, session: Session, every: int, now: float) -> None:
    """A turn was committed: with it, a window may be full."""
    if not every or session.kind is not Kind.CHAT or session.last_turn - session.base_turn < every:
        return
    reviewed_to = _reviewed_to(uow, session)
    if session.last_turn - reviewed_to >= every:
        _add(uow, session, due(reviewed_to, uow.turns.last_visible(session, every), every), now)


def note_rest(uow: UnitOfWork, session: Session, every: int, now: float) -> None:
    """The session was closed: what has not been reviewed of it is due."""
    if every and session.kind is Kind.CHAT and session.last_turn > session.base_turn:
        _add(uow, session, rest(_reviewed_to(uow, session), uow.turns.last_visible(session, 1)), now)


def _reviewed_to(uow: UnitOfWork, session: Session) -> int:
    # What it shows of its ancestors is theirs to be reviewed.
    return max(uow.reviews.reviewed_to(session.id), session.base_turn)


def _add(uow: UnitOfWork, session: Session, window: Window | None, now: float) -> None:
    if window is not None:
        uow.reviews.add(session.id, window, now)


def take_review(uow: UnitOfWork, holder: str, now: float) -> tuple[Review, SessionRef] | None:
    """The next review that is due, for this process alone, and the session it is about, wherever its key is by now."""
    taken = uow.reviews.take(holder, now)
    if taken is None:
        return None
    session_id, window, fence = taken
    session = uow.sessions.get(session_id)
    assert session is not None
    return Review(session_id, window, fence, uow.erasure.burials(session.owner)), _ref(uow, session)


def _ref(uow: UnitOfWork, session: Session) -> SessionRef:
    here = uow.sessions.ref(session.key)
    return here if here is not None and here.session_id == session.id else ref_to(session, session.key, 0)


def held(uow: UnitOfWork, review: Review, owner: str) -> None:
    """Raises `Fenced` unless the review may still write: what it read may have been taken back or forgotten since."""
    if not uow.reviews.is_held(review) or uow.erasure.burials(owner) != review.burials:
        raise Fenced(f"the review of {review.window.words} was stopped")
