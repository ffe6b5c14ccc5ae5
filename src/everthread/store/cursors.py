"""Cursors: the position of each provider in each session's log, and entries to deliver out of order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from everthread.domain.clock_rules import latest_deadline
from everthread.store.database import Table
from everthread.store.turns import MESSAGES_PER_TURN


class Cursor(Struct, frozen=True):
    """The position of a provider in a session's log."""

    provider: str
    session_id: str
    seq: int
    replay: int = 0
    attempts: int = 0
    due_at: float | None = None
    error: str | None = None
    copy_to: int = 0
    """Up to this entry, a copy delivers the past as it is stored now."""


class BackfillCandidate(Struct, frozen=True):
    """A session that a provider has not received from its beginning."""

    session_id: str
    entries: int
    turns: int
    characters: int
    is_at_rest: bool
    """No entry of it waits for the provider."""


class Redelivery(Struct, frozen=True):
    """An entry outside its lane's order: parked (no `due_at`), or waiting for another delivery."""

    provider: str
    session_id: str
    seq: int
    replay: int
    error: str
    attempts: int = 0
    due_at: float | None = None


class ProviderRow(Struct, frozen=True):
    """A provider: the log position up to which new entries were discovered, and its circuit breaker."""

    name: str
    scanned_pos: int
    failures: int = 0
    open_until: float = 0.0
    last_error: str | None = None
    last_error_at: float | None = None


class LaneCount(Struct, frozen=True):
    """A provider's backlog, for display."""

    waiting_entries: int
    waiting_sessions: int
    parked: int
    oldest_at: float | None = None
    """The time of the oldest waiting entry."""


_CURSOR = "provider, session_id, seq, replay, attempts, due_at, error, copy_to"
_PROVIDER = "name, scanned_pos, failures, open_until, last_error, last_error_at"
_REDELIVERY = "provider, session_id, seq, replay, error, attempts, due_at"

# Only this condition keeps scheduled and delegated work out of memory.
_REMEMBERED = "s.kind IN ('chat', 'notes')"

# Sessions that a provider has not received from the beginning.
_NOT_WHOLE = "COALESCE(c.told_from, 1) > 0"
# No entry of them waits: a copy must not skip a request to forget. A lane may be due without an entry that waits: after
# an import, whose entries no provider receives.
_AT_REST = (
    "(c.seq >= s.log_seq OR (c.due_at IS NULL AND NOT EXISTS "
    "(SELECT 1 FROM log l WHERE l.session_id = s.id AND l.seq = s.log_seq AND l.pos > p.scanned_pos)))"
)


class Cursors(Table):
    """Providers, cursors and redeliveries."""

    def register(self, provider: str) -> None:
        """Add a provider. A new one starts at the ends of the logs."""
        self._execute(
            "INSERT INTO providers (name, scanned_pos, failures, open_until) "
            "SELECT ?, COALESCE((SELECT MAX(pos) FROM log), 0), 0, 0.0 WHERE true ON CONFLICT DO NOTHING",
            (provider,),
        )

    def provider(self, name: str) -> ProviderRow | None:
        row = self._first(f"SELECT {_PROVIDER} FROM providers WHERE name = ?", (name,))
        return ProviderRow(*row) if row else None

    def providers(self) -> tuple[ProviderRow, ...]:
        return tuple(ProviderRow(*row) for row in self._execute(f"SELECT {_PROVIDER} FROM providers ORDER BY name"))

    def save_provider(self, row: ProviderRow) -> None:
        self._execute(
            "UPDATE providers SET scanned_pos = ?, failures = ?, open_until = ?, last_error = ?, "
            "last_error_at = ? WHERE name = ?",
            (row.scanned_pos, row.failures, row.open_until, row.last_error, row.last_error_at, row.name),
        )

    def discover(self, provider: str, now: float, limit: int) -> bool:
        """Make the lanes of new log entries due. Return whether there may be more of them."""
        row = self.provider(provider)
        if row is None:
            return False
        top = self._first(
            "SELECT MAX(pos) FROM (SELECT pos FROM log WHERE pos > ? ORDER BY pos LIMIT ?) AS new",
            (row.scanned_pos, limit),
        )
        if top is None or top[0] is None:
            return False
        replay = self._database.first_replay
        # A waiting lane keeps its due time: new entries must not shorten its back-off.
        self._execute(
            "INSERT INTO cursors (provider, session_id, seq, replay, replay_last, attempts, due_at, told_from) "
            "SELECT ?, l.session_id, MIN(l.seq) - 1, ?, ?, 0, ?, MIN(l.seq) - 1 "
            "FROM log l JOIN sessions s ON s.id = l.session_id "
            f"WHERE l.pos > ? AND l.pos <= ? AND {_REMEMBERED} GROUP BY l.session_id "
            "ON CONFLICT (provider, session_id) DO UPDATE SET due_at = COALESCE(cursors.due_at, excluded.due_at)",
            (provider, replay, replay, now, row.scanned_pos, top[0]),
        )
        self._execute("UPDATE providers SET scanned_pos = ? WHERE name = ?", (top[0], provider))
        return True

    def get(self, provider: str, session_id: str) -> Cursor | None:
        row = self._first(
            f"SELECT {_CURSOR} FROM cursors WHERE provider = ? AND session_id = ?", (provider, session_id)
        )
        return Cursor(*row) if row else None

    def save(self, cursor: Cursor) -> None:
        c = cursor
        self._execute(
            "UPDATE cursors SET seq = ?, replay = ?, attempts = ?, due_at = ?, error = ? "
            "WHERE provider = ? AND session_id = ?",
            (c.seq, c.replay, c.attempts, c.due_at, c.error, c.provider, c.session_id),
        )

    def due_sessions(self, provider: str, now: float, limit: int) -> tuple[str, ...]:
        """Return sessions with an entry to deliver now, the longest waiting first."""
        # Each range from its own index, so that the cost does not depend on the backlog.
        rows: list[tuple[float, str]] = []
        for table in ("cursors", "redeliveries"):
            rows += self._execute(
                f"SELECT * FROM (SELECT due_at, session_id FROM {table} WHERE provider = ? AND due_at <= ? "
                "ORDER BY due_at LIMIT ?) AS due UNION ALL SELECT * FROM (SELECT due_at, session_id "
                f"FROM {table} WHERE provider = ? AND due_at > ? ORDER BY due_at LIMIT ?) AS ahead",
                (provider, now, limit, provider, latest_deadline(now), limit),
            )
        return tuple(dict.fromkeys(session_id for _, session_id in sorted(rows)))[:limit]

    def next_due(self, provider: str, after: float) -> float | None:
        """Return the time of the next delivery after `after`."""
        row = self._first(
            "SELECT MIN(due_at) FROM (SELECT MIN(due_at) AS due_at FROM cursors WHERE provider = ? "
            "AND due_at > ? UNION ALL SELECT MIN(due_at) FROM redeliveries WHERE provider = ? AND due_at > ?) "
            "AS lanes",
            (provider, after, provider, after),
        )
        return row[0] if row else None

    def restart(self, provider: str, session_id: str | None, now: float) -> int:
        """Restart lanes from the beginning of their logs under a new replay number, and return their number."""
        some = "AND s.id = ?" if session_id is not None else ""
        replay = self._database.first_replay + 1
        values: tuple[Any, ...] = (session_id,) if session_id is not None else ()
        rows = self._execute(
            "INSERT INTO cursors (provider, session_id, seq, replay, replay_last, attempts, due_at, told_from) "
            "SELECT ?, s.id, 0, ?, ?, 0, ?, 0 FROM sessions s "
            f"WHERE {_REMEMBERED} AND s.log_seq > 0 {some} "
            "ON CONFLICT (provider, session_id) DO UPDATE SET seq = 0, replay = cursors.replay_last + 1, "
            "replay_last = cursors.replay_last + 1, attempts = 0, due_at = excluded.due_at, error = NULL, "
            "told_from = 0, copy_to = 0 "
            "RETURNING session_id",
            (provider, replay, replay, now, *values),
        )
        return self._drop_redeliveries(provider, [row[0] for row in rows])

    def restart_owner(self, provider: str, owner: str, now: float) -> int:
        """Restart the lanes of an owner's conversations at the entry where each was first delivered from, under a new
        replay number, and return their number. Forgotten sessions are left out.
        """
        rows = self._execute(
            "UPDATE cursors SET seq = COALESCE(told_from, 0), replay = replay_last + 1, replay_last = replay_last + 1, "
            "attempts = 0, due_at = ?, error = NULL WHERE provider = ? AND session_id IN "
            "(SELECT s.id FROM sessions s WHERE s.owner = ? AND s.kind = 'chat' AND s.forgotten_seq IS NULL "
            "AND s.log_seq > COALESCE(cursors.told_from, 0)) RETURNING session_id",
            (now, provider, owner),
        )
        return self._drop_redeliveries(provider, [row[0] for row in rows])

    def _drop_redeliveries(self, provider: str, lanes: Sequence[str]) -> int:
        """Drop the redeliveries of restarted lanes: the replay delivers their entries in order."""
        for lane in lanes:
            self._execute("DELETE FROM redeliveries WHERE provider = ? AND session_id = ?", (provider, lane))
        return len(lanes)

    def backfill_candidates(self, provider: str, after: str, limit: int) -> tuple[BackfillCandidate, ...]:
        """Return sessions that the provider has not received from the beginning, by id, after `after`."""
        rows = self._execute(
            "SELECT s.id, s.log_seq - COALESCE(s.forgotten_seq, 0), "
            "(SELECT COUNT(*) FROM turns t WHERE t.session_id = s.id), "
            "(SELECT COALESCE(SUM(LENGTH(m.content)), 0) FROM turns t JOIN messages m "
            f"ON m.id BETWEEN t.id * {MESSAGES_PER_TURN} AND t.id * {MESSAGES_PER_TURN} + {MESSAGES_PER_TURN - 1} "
            "WHERE t.session_id = s.id), "
            f"{_AT_REST} FROM providers p CROSS JOIN sessions s "
            "LEFT JOIN cursors c ON c.provider = p.name AND c.session_id = s.id "
            f"WHERE p.name = ? AND s.id > ? AND {_REMEMBERED} AND s.log_seq > 0 AND {_NOT_WHOLE} "
            "ORDER BY s.id LIMIT ?",
            (provider, after, limit),
        )
        return tuple(BackfillCandidate(row[0], row[1], row[2], row[3], bool(row[4])) for row in rows)

    def copy(self, provider: str, session_id: str, now: float) -> bool:
        """Restart the lane of such a session at its log's beginning. Return False if it is none, or if entries of it
        wait.
        """
        replay = self._database.first_replay
        rows = self._execute(
            "INSERT INTO cursors "
            "(provider, session_id, seq, replay, replay_last, attempts, due_at, told_from, copy_to) "
            "SELECT p.name, s.id, 0, ?, ?, 0, ?, 0, s.log_seq "
            "FROM providers p CROSS JOIN sessions s "
            "LEFT JOIN cursors c ON c.provider = p.name AND c.session_id = s.id "
            f"WHERE p.name = ? AND s.id = ? AND {_REMEMBERED} AND s.log_seq > 0 AND {_NOT_WHOLE} AND {_AT_REST} "
            "ON CONFLICT (provider, session_id) DO UPDATE SET seq = 0, replay = cursors.replay_last + 1, "
            "replay_last = cursors.replay_last + 1, attempts = 0, due_at = excluded.due_at, error = NULL, "
            "told_from = 0, copy_to = excluded.copy_to RETURNING session_id",
            (replay, replay, now, provider, session_id),
        )
        if not rows:
            return False
        # The copy delivers parked entries in order, except requests to forget, which it leaves out.
        self._execute(
            "DELETE FROM redeliveries WHERE provider = ? AND session_id = ? AND seq NOT IN "
            "(SELECT l.seq FROM log l WHERE l.session_id = ? AND l.kind = 'forget')",
            (provider, session_id, session_id),
        )
        return True

    def copying(self, provider: str) -> tuple[int, int]:
        """Return the sessions and entries that are left of started copies."""
        row = self._first(
            "SELECT COUNT(*), COALESCE(SUM(copy_to - seq), 0) FROM cursors "
            "WHERE provider = ? AND due_at IS NOT NULL AND seq < copy_to",
            (provider,),
        )
        assert row is not None
        return row[0], row[1]

    def new_replay(self, provider: str, session_id: str) -> int:
        """Return the lane's next replay number."""
        return self._value(
            "UPDATE cursors SET replay_last = replay_last + 1 WHERE provider = ? AND session_id = ? "
            "RETURNING replay_last",
            (provider, session_id),
        )

    def add_redelivery(self, row: Redelivery) -> None:
        r = row
        self._execute(
            f"INSERT INTO redeliveries ({_REDELIVERY}) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (provider, session_id, seq, replay) DO UPDATE SET error = excluded.error, "
            "attempts = excluded.attempts, due_at = excluded.due_at",
            (r.provider, r.session_id, r.seq, r.replay, r.error, r.attempts, r.due_at),
        )

    def redeliveries(self, provider: str, session_id: str | None = None) -> tuple[Redelivery, ...]:
        some = "" if session_id is None else "AND session_id = ?"
        values = () if session_id is None else (session_id,)
        rows = self._execute(
            f"SELECT {_REDELIVERY} FROM redeliveries WHERE provider = ? {some} ORDER BY session_id, seq, replay",
            (provider, *values),
        )
        return tuple(Redelivery(*row) for row in rows)

    def drop_redelivery(self, row: Redelivery) -> None:
        self._execute(
            "DELETE FROM redeliveries WHERE provider = ? AND session_id = ? AND seq = ? AND replay = ?",
            (row.provider, row.session_id, row.seq, row.replay),
        )

    def parked(self, provider: str, session_id: str) -> tuple[int, ...]:
        """Return the parked entries of a lane, other than closes."""
        rows = self._execute(
            "SELECT DISTINCT r.seq FROM redeliveries r JOIN log l ON l.session_id = r.session_id AND l.seq = r.seq "
            "WHERE r.provider = ? AND r.session_id = ? AND l.kind <> 'close' ORDER BY r.seq",
            (provider, session_id),
        )
        return tuple(row[0] for row in rows)

    def count(self, provider: str) -> LaneCount:
        """Return the provider's backlog."""
        waiting = self._first(
            "SELECT COUNT(*), COALESCE(SUM(s.log_seq - c.seq), 0) FROM cursors c "
            "JOIN sessions s ON s.id = c.session_id WHERE c.provider = ? AND c.due_at IS NOT NULL",
            (provider,),
        )
        new = self._first(
            "SELECT COUNT(*) FROM providers p JOIN log l ON l.pos > p.scanned_pos "
            f"JOIN sessions s ON s.id = l.session_id AND {_REMEMBERED} "
            "LEFT JOIN cursors c ON c.provider = p.name AND c.session_id = l.session_id "
            "AND c.due_at IS NOT NULL WHERE p.name = ? AND c.provider IS NULL",
            (provider,),
        )
        again = self._first(
            "SELECT COUNT(*), COALESCE(SUM(CASE WHEN due_at IS NULL THEN 1 ELSE 0 END), 0) FROM redeliveries "
            "WHERE provider = ?",
            (provider,),
        )
        assert waiting is not None
        assert new is not None
        assert again is not None
        redeliveries, parked = again
        return LaneCount(waiting[1] + new[0] + redeliveries - parked, waiting[0], parked, self._oldest_at(provider))

    def _oldest_at(self, provider: str) -> float | None:
        """Return when the oldest waiting entry was written. Copied entries are not late."""
        row = self._first(
            "SELECT MIN(at) FROM (SELECT l.at FROM cursors c JOIN log l ON l.session_id = c.session_id "
            "AND l.seq = c.seq + 1 WHERE c.provider = ? AND c.due_at IS NOT NULL AND c.seq >= c.copy_to "
            "UNION ALL SELECT * FROM (SELECT l.at FROM providers p JOIN log l ON l.pos > p.scanned_pos "
            f"JOIN sessions s ON s.id = l.session_id AND {_REMEMBERED} WHERE p.name = ? "
            "ORDER BY l.pos LIMIT 1) AS new) AS waiting",
            (provider, provider),
        )
        return row[0] if row else None
