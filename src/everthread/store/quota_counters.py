"""Counters of a person's data, and forks within a time. The engine keeps the counters up to date by triggers."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.model import SessionKey
from everthread.store.database import Table
from everthread.store.turns import MESSAGES_PER_TURN

_COUNTERS = "sessions, stored_bytes, media_bytes"
# The same conditions as those of the triggers.
_COUNTED = (
    "(SELECT COUNT(*) FROM sessions WHERE owner = ? AND kind = 'chat' AND cause <> 'compression' "
    "AND forgotten_seq IS NULL)",
    "(SELECT COALESCE(SUM(octet_length(m.content) + COALESCE(octet_length(m.extra), 0)), 0) FROM sessions s "
    "JOIN turns t ON t.session_id = s.id "
    f"JOIN messages m ON m.id >= t.id * {MESSAGES_PER_TURN} AND m.id < (t.id + 1) * {MESSAGES_PER_TURN} "
    "WHERE s.owner = ?) "
    "+ (SELECT COALESCE(SUM(octet_length(content)), 0) FROM note_versions WHERE owner = ?)",
    "(SELECT COALESCE(SUM(media_bytes), 0) FROM inbox WHERE owner = ? AND media <> '')",
)


class QuotaCounts(Struct, frozen=True):
    """The counted data of one person."""

    sessions: int
    """Chats that are not forgotten, without continuations of compressed ones."""
    stored_bytes: int
    """Bytes of the messages of all turns and of all versions of notes."""
    media_bytes: int
    """Bytes of the attachments."""


class QuotaCounters(Table):
    """Counters by owner. There is a row for each owner whose counters were needed."""

    def get(self, owner: str) -> QuotaCounts | None:
        """Return the counters, or None if there is no row yet."""
        row = self._first(f"SELECT {_COUNTERS} FROM quota_counters WHERE owner = ?", (owner,))
        return QuotaCounts(*row) if row else None

    def get_at(self, owner: str, key: SessionKey) -> tuple[QuotaCounts, bool] | None:
        """Return the counters, and whether the key is on a session; None if there is no row yet."""
        row = self._first(
            f"SELECT {_COUNTERS}, EXISTS (SELECT 1 FROM bindings WHERE key = ? AND session_id IS NOT NULL "
            "AND owner = ?) FROM quota_counters WHERE owner = ?",
            (str(key), owner, owner),
        )
        return (QuotaCounts(*row[:3]), bool(row[3])) if row else None

    def add(self, owner: str) -> QuotaCounts:
        """Count the owner's data and store the counters. Reads all of it."""
        counts = self.count(owner)
        self._execute(
            f"INSERT INTO quota_counters (owner, {_COUNTERS}) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (owner, counts.sessions, counts.stored_bytes, counts.media_bytes),
        )
        return counts

    def count(self, owner: str) -> QuotaCounts:
        """Count the owner's data. Reads all of it."""
        return QuotaCounts(*self._execute(f"SELECT {', '.join(_COUNTED)}", (owner, owner, owner, owner))[0])

    def forks(self, owner: str, after: float, before: float, limit: int) -> int:
        """Count the owner's forks between those times, up to a limit."""
        return self._value(
            "SELECT COUNT(*) FROM (SELECT 1 FROM boundaries WHERE kind = 'branch' AND owner = ? AND at > ? "
            "AND at <= ? LIMIT ?) AS recent",
            (owner, after, before, limit),
        )

    def owners(self, limit: int) -> tuple[str, ...]:
        """Return owners of sessions and attachments."""
        rows = self._execute("SELECT DISTINCT owner FROM sessions ORDER BY owner LIMIT ?", (limit,))
        return tuple(owner for (owner,) in rows)
