"""Reviews: which turns are due, and the claim that lets one process write for them."""

from __future__ import annotations

from everthread.domain.errors import Fenced
from everthread.domain.model import Session, SessionKind, SessionRef
from everthread.domain.review_window import Review, ReviewWindow, due_window, remaining_window
from everthread.store.unit_of_work import UnitOfWork


def schedule_full(uow: UnitOfWork, session: Session, every: int, now: float) -> None:
    """After a committed turn, schedule a review if a window of `every` turns is full."""
    if not every or session.kind is not SessionKind.CHAT or session.last_turn - session.base_turn < every:
        return
    reviewed_to = _reviewed_to(uow, session)
    if session.last_turn - reviewed_to >= every:
        _add(uow, session, due_window(reviewed_to, uow.turns.last_visible(session, every), every), now)


def schedule_rest(uow: UnitOfWork, session: Session, every: int, now: float) -> None:
    """After a close, schedule a review of the turns that were not reviewed yet."""
    if every and session.kind is SessionKind.CHAT and session.last_turn > session.base_turn:
        _add(uow, session, remaining_window(_reviewed_to(uow, session), uow.turns.last_visible(session, 1)), now)


def claim_review(uow: UnitOfWork, holder: str, now: float) -> tuple[Review, SessionRef] | None:
    """Claim the oldest due review that has no live holder. Returns it with the session that it is about."""
    claimed = uow.reviews.claim(holder, now)
    if claimed is None:
        return None
    session_id, window, fence = claimed
    session = uow.sessions.get(session_id)
    assert session is not None
    return Review(session_id, window, fence, uow.erasure.forget_count(session.owner)), _ref(uow, session)


def check_review(uow: UnitOfWork, review: Review, owner: str) -> None:
    """Raise `Fenced` or `Outdated` unless the review may still go on: its turns may have been rewound or forgotten."""
    check_held(uow, review)
    uow.derived.check(owner, review.forget_count)


def check_held(uow: UnitOfWork, review: Review) -> None:
    """Raise `Fenced` unless this process still holds the review."""
    if not uow.reviews.is_held(review):
        raise Fenced(f"the review of {review.window.label} was stopped")


def _reviewed_to(uow: UnitOfWork, session: Session) -> int:
    # Inherited turns are reviewed in the session that they belong to.
    return max(uow.reviews.reviewed_to(session.id), session.base_turn)


def _add(uow: UnitOfWork, session: Session, window: ReviewWindow | None, now: float) -> None:
    if window is not None:
        uow.reviews.add(session.id, window, now)


def _ref(uow: UnitOfWork, session: Session) -> SessionRef:
    """Return the session's ref at its own key, even if the key has moved on."""
    here = uow.sessions.ref(session.key)
    return here if here is not None and here.session_id == session.id else session.ref_at(session.key, 0)
