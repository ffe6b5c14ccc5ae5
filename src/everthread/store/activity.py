"""The activity feed of an owner: boundaries and committed turns after a position. Read from rows stored anyway."""

from __future__ import annotations

from heapq import merge

from msgspec import Struct

from everthread.domain.model import SessionKey, TurnStatus
from everthread.store.database import Table
from everthread.store.sessions import BoundaryRow
from everthread.store.sql import key_of


class FeedPosition(Struct, frozen=True):
    """A position in the feed: the last boundary and the last log position that were read."""

    boundary: int = 0
    pos: int = 0


class TurnActivity(Struct, frozen=True):
    """A committed turn."""

    pos: int
    session_id: str
    key: SessionKey
    number: int
    turn_id: str
    status: TurnStatus
    at: float


class Activity(Table):
    """Boundaries and turns in the order in which they happened."""

    def end(self) -> FeedPosition:
        """Return the position after everything that has happened so far, to any owner."""
        rows = self._execute(
            "SELECT (SELECT COALESCE(MAX(id), 0) FROM boundaries), (SELECT COALESCE(MAX(pos), 0) FROM log)"
        )
        return FeedPosition(*rows[0])

    def after(
        self, owner: str, mark: FeedPosition, window: int
    ) -> tuple[tuple[BoundaryRow | TurnActivity, ...], FeedPosition]:
        """Return what happened to the owner's conversations, oldest first, and the next position.

        Reads `window` rows of each kind, of any owner.
        """
        end = self.end()
        # Ranges of row numbers: the cost depends on the new rows only.
        to = FeedPosition(min(mark.boundary + window, end.boundary), min(mark.pos + window, end.pos))
        boundaries = self._execute(
            "SELECT kind, key, owner, from_session, to_session, epoch, actor, at, id FROM boundaries "
            "WHERE id > ? AND id <= ? AND owner = ? ORDER BY id",
            (mark.boundary, to.boundary, owner),
        )
        turns = self._execute(
            "SELECT l.pos, l.session_id, l.key, l.number, t.turn_id, t.status, t.at FROM log l "
            "JOIN turns t ON t.session_id = l.session_id AND t.number = l.number "
            "WHERE l.pos > ? AND l.pos <= ? AND l.owner = ? AND l.kind = 'turn' ORDER BY l.pos",
            (mark.pos, to.pos, owner),
        )
        happened = [
            TurnActivity(row[0], row[1], key_of(row[2]), row[3], row[4], TurnStatus(row[5]), row[6]) for row in turns
        ]
        crossed = [BoundaryRow(row[0], key_of(row[1]), *row[2:]) for row in boundaries]
        # The merge keeps the order of each table, even if the clock was set back.
        return tuple(merge(crossed, happened, key=lambda one: one.at)), to
