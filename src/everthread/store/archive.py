"""Import and removal of whole sessions."""

from __future__ import annotations

from everthread.domain.model import Session, SessionKind
from everthread.store.attachments import discard
from everthread.store.database import Database, Table
from everthread.store.search_index import SearchIndex
from everthread.store.session_list import COLUMNS, session_of
from everthread.store.turns import MESSAGES_PER_TURN

_REMEMBERED = ", ".join(f"'{kind.value}'" for kind in SessionKind if kind.remembered)
_ITS_ROWS = (
    "DELETE FROM recalled WHERE turn IN (SELECT id FROM turns WHERE session_id = ?)",
    "DELETE FROM turns WHERE session_id = ?",
    "DELETE FROM hidden WHERE session_id = ?",
    "DELETE FROM prefixes WHERE session_id = ?",
    "DELETE FROM summaries WHERE session_id = ?",
    "DELETE FROM log WHERE session_id = ?",
    "DELETE FROM cursors WHERE session_id = ?",
    "DELETE FROM redeliveries WHERE session_id = ?",
    "DELETE FROM incidents WHERE session_id = ?",
    "DELETE FROM error_details WHERE session_id = ?",
    "DELETE FROM serving WHERE session_id = ?",
    "DELETE FROM replies WHERE session_id = ?",
    "DELETE FROM reviews WHERE session_id = ?",
    "DELETE FROM rests WHERE session_id = ?",
    "DELETE FROM sessions WHERE id = ?",
)
# The row of a forgotten session still links its children to its parent.
_CHILDREN = (
    "WITH RECURSIVE up (parent_id, id) AS (SELECT parent_id, id FROM sessions WHERE forgotten_seq IS NULL UNION ALL "
    "SELECT s.parent_id, up.id FROM up JOIN sessions s ON s.id = up.parent_id WHERE s.forgotten_seq IS NOT NULL) "
    "SELECT parent_id, id FROM up WHERE parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions s "
    "WHERE s.id = up.parent_id AND s.forgotten_seq IS NOT NULL) ORDER BY id"
)
_CHILDREN_OF = (
    "WITH RECURSIVE down (id, forgotten_seq) AS (SELECT id, forgotten_seq FROM sessions WHERE parent_id = ? UNION ALL "
    "SELECT s.id, s.forgotten_seq FROM down JOIN sessions s ON s.parent_id = down.id "
    "WHERE down.forgotten_seq IS NOT NULL) SELECT NULL, id FROM down WHERE forgotten_seq IS NULL ORDER BY id"
)


class Archive(Table):
    """Sessions that are imported or pruned."""

    def __init__(self, database: Database, search: SearchIndex) -> None:
        super().__init__(database)
        self._search = search

    def has_undelivered(self, session_id: str) -> bool:
        """Return whether a provider has not received the whole log of the session."""
        return self._exists(
            "SELECT 1 FROM sessions s JOIN log l ON l.session_id = s.id AND l.seq = s.log_seq "
            "CROSS JOIN providers p LEFT JOIN cursors c ON c.provider = p.name AND c.session_id = s.id "
            f"WHERE s.id = ? AND s.kind IN ({_REMEMBERED}) AND ((c.seq IS NULL AND l.pos > p.scanned_pos) "
            "OR c.seq < s.log_seq "
            "OR EXISTS (SELECT 1 FROM redeliveries r WHERE r.provider = p.name AND r.session_id = s.id))",
            (session_id,),
        )

    def mark_delivered(self, session_id: str) -> None:
        """Move every provider's cursor to the end of the session's log."""
        self._execute(
            "INSERT INTO cursors (provider, session_id, seq, replay, replay_last, attempts, told_from) "
            "SELECT p.name, s.id, s.log_seq, ?, ?, 0, s.log_seq "
            "FROM providers p CROSS JOIN sessions s WHERE s.id = ? "
            # Entries that were skipped can still be copied later.
            "ON CONFLICT (provider, session_id) DO UPDATE SET seq = excluded.seq, "
            "told_from = CASE WHEN cursors.seq < excluded.seq THEN excluded.seq ELSE cursors.told_from END",
            (self._database.first_replay, self._database.first_replay, session_id),
        )

    def ended_before(self, before: float, session_id: str | None = None) -> tuple[Session, ...]:
        """Return conversations that ended and were last active before then, and that are in no use."""
        some = "" if session_id is None else "AND s.id = ?"
        rows = self._execute(
            f"SELECT {COLUMNS} FROM sessions s WHERE ended_at < ? AND active_at < ? AND forgotten_seq IS NULL "
            "AND kind <> ? AND NOT EXISTS (SELECT 1 FROM bindings b WHERE b.session_id = s.id) "
            "AND NOT EXISTS (SELECT 1 FROM slots x WHERE x.session_id = s.id) "
            f"AND NOT EXISTS (SELECT 1 FROM hook_calls h WHERE h.session_id = s.id) {some} ORDER BY id",
            (before, before, SessionKind.NOTES.value, *(() if session_id is None else (session_id,))),
        )
        return tuple(session_of(row) for row in rows)

    def children(self, parent_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return (parent, child) pairs of sessions that are not forgotten, skipping forgotten ones between them."""
        rows = self._execute(_CHILDREN) if parent_id is None else self._execute(_CHILDREN_OF, (parent_id,))
        return tuple((parent_id or row[0], row[1]) for row in rows)

    def holds_the_newest(self, session_id: str) -> bool:
        """Return whether the newest turn or log entry of all is the session's: their numbers must not be reused."""
        rows = self._execute(
            "SELECT session_id FROM (SELECT session_id FROM log ORDER BY pos DESC LIMIT 1) UNION ALL "
            "SELECT session_id FROM (SELECT session_id FROM turns ORDER BY id DESC LIMIT 1)"
        )
        return any(row[0] == session_id for row in list(rows))

    def remove(self, session_id: str) -> int:
        """Delete every row of the session's conversation and return its number of turns. Notes and boundaries stay."""
        turns = [row[0] for row in self._execute("SELECT id FROM turns WHERE session_id = ?", (session_id,))]
        for turn in turns:
            start, end = turn * MESSAGES_PER_TURN, (turn + 1) * MESSAGES_PER_TURN
            self._search.remove(start, end)
            self._execute("DELETE FROM messages WHERE id >= ? AND id < ?", (start, end))
        for (owner,) in list(self._execute("SELECT owner FROM sessions WHERE id = ?", (session_id,))):
            discard(self._execute, owner, session_id)
        for sql in _ITS_ROWS:
            self._execute(sql, (session_id,))
        return len(turns)
