"""Background reviews: one row for each window of a session's turns."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.review_window import RETRY_S_MAX, Review, ReviewState, ReviewWindow
from everthread.store.database import Table


class ReviewRow(Struct, frozen=True):
    """The state of one review."""

    session_id: str
    window: ReviewWindow
    state: ReviewState
    fence: int
    """The number of claims so far."""
    due_at: float


_OPEN = "state IN ('waiting', 'running')"
_CLAIMABLE = (
    f"r.{_OPEN} AND (r.due_at <= ? OR r.due_at > ?) AND (r.state = 'waiting' OR NOT EXISTS "
    "(SELECT 1 FROM leases l WHERE l.name = 'process:' || r.holder AND l.expires_at > ?))"
)
_ONE = "session_id = ? AND from_turn = ? AND to_turn = ?"


class Reviews(Table):
    """Reviews of windows of turns, each done once."""

    def add(self, session_id: str, window: ReviewWindow, now: float) -> None:
        """Queue a review of these turns. Does nothing if it exists, unless it was stopped."""
        self._execute(
            "INSERT INTO reviews (session_id, from_turn, to_turn, state, due_at) VALUES (?, ?, ?, 'waiting', ?) "
            "ON CONFLICT (session_id, from_turn, to_turn) DO UPDATE SET state = 'waiting', due_at = excluded.due_at "
            "WHERE reviews.state = 'stopped'",
            (session_id, window.from_turn, window.to_turn, now),
        )

    def reviewed_to(self, session_id: str) -> int:
        """Return the last turn that is in a window that was not stopped; 0 if there is none."""
        return self._value(
            "SELECT COALESCE(MAX(to_turn), 0) FROM reviews WHERE session_id = ? AND state <> 'stopped'", (session_id,)
        )

    def claim(self, holder: str, now: float) -> tuple[str, ReviewWindow, int] | None:
        """Claim the oldest due review that has no live holder. Return session, window and fence."""
        row = self._first(
            "UPDATE reviews SET state = 'running', holder = ?, fence = fence + 1 "
            "WHERE (session_id, from_turn, to_turn) = (SELECT r.session_id, r.from_turn, r.to_turn FROM reviews r "
            f"WHERE {_CLAIMABLE} ORDER BY r.due_at, r.session_id, r.from_turn LIMIT 1) "
            "RETURNING session_id, from_turn, to_turn, fence",
            (holder, *_claimable_values(now)),
        )
        return (row[0], ReviewWindow(row[1], row[2]), row[3]) if row else None

    def is_due(self, now: float) -> bool:
        """Return whether there is a review to claim, without writing."""
        return self._exists(f"SELECT 1 FROM reviews r WHERE {_CLAIMABLE} LIMIT 1", _claimable_values(now))

    def is_held(self, review: Review) -> bool:
        """Return whether the claim is still valid: the review was not stopped, erased or taken over."""
        statement = f"SELECT 1 FROM reviews WHERE {_ONE} AND state = 'running' AND fence = ?"
        return self._exists(statement, _claim_values(review))

    def end(self, review: Review, state: ReviewState, due_at: float = 0.0) -> bool:
        """Record the outcome, and return True, if the claim is still valid. One that waits again is due at `due_at`."""
        return self._exists(
            f"UPDATE reviews SET state = ?, holder = '', due_at = ? WHERE {_ONE} AND state = 'running' AND fence = ? "
            "RETURNING fence",
            (state.value, due_at, *_claim_values(review)),
        )

    def stop(self, session_id: str, turns: ReviewWindow) -> None:
        """Stop open reviews that overlap these turns."""
        self._execute(
            f"UPDATE reviews SET state = 'stopped', holder = '' WHERE session_id = ? AND {_OPEN} "
            "AND to_turn >= ? AND from_turn <= ?",
            (session_id, turns.from_turn, turns.to_turn),
        )

    def restart(self, session_id: str, turns: ReviewWindow, now: float) -> None:
        """Queue finished reviews that overlap these turns again."""
        self._execute(
            "UPDATE reviews SET state = 'waiting', due_at = ? WHERE session_id = ? "
            "AND state IN ('done', 'failed') AND to_turn >= ? AND from_turn <= ?",
            (now, session_id, turns.from_turn, turns.to_turn),
        )

    def of_session(self, session_id: str) -> tuple[ReviewRow, ...]:
        rows = self._execute(
            "SELECT from_turn, to_turn, state, fence, due_at FROM reviews WHERE session_id = ? "
            "ORDER BY from_turn, to_turn",
            (session_id,),
        )
        return tuple(
            ReviewRow(session_id, ReviewWindow(from_turn, to_turn), ReviewState(state), fence, due_at)
            for from_turn, to_turn, state, fence, due_at in rows
        )


def _claimable_values(now: float) -> tuple[float, float, float]:
    return now, latest_deadline(now, RETRY_S_MAX), now


def _claim_values(review: Review) -> tuple[str, int, int, int]:
    return review.session_id, review.window.from_turn, review.window.to_turn, review.fence
