"""Deliveries that a plugin has acknowledged, by key: plugins themselves know no keys.

Plugins buffer entries until a session ends, so a process that dies may lose acknowledged deliveries. Each delivery is
recorded with the process that took it, until the plugin's instance of that session has shut down properly.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw

KEPT_MAX = 64
"""Deliveries kept for each session. Older ones are redelivered only by a replay, which has other keys."""

_TABLE = """
CREATE TABLE IF NOT EXISTS told (
    key TEXT PRIMARY KEY, session_id TEXT NOT NULL, seq INTEGER NOT NULL, life TEXT NOT NULL, number INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS told_session ON told (session_id, number);
"""


class DeliveryLog:
    """SQLite file. `life` is the id of the process, or "" for deliveries that are safe if it dies."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        self.lock = asyncio.Lock()
        """Hold it while calling a method in a thread."""
        self._db: Any = apsw.Connection(str(path))
        self._db.set_busy_timeout(5000)
        self._db.execute(_TABLE)

    def close(self) -> None:
        self._db.close()

    def is_acknowledged(self, key: str) -> bool:
        return any(self._db.execute("SELECT 1 FROM told WHERE key = ?", (key,)))

    def remove_lost(self, session_id: str, process_id: str) -> int | None:
        """Remove deliveries from the first one that another process took and may have lost.

        Return the log position of that one.
        """
        with self._db:
            found = self._db.execute(
                "DELETE FROM told WHERE session_id = ? AND life NOT IN ('', ?) RETURNING seq", (session_id, process_id)
            )
            first = min((seq for (seq,) in found), default=None)
            if first is not None:
                self._db.execute("DELETE FROM told WHERE session_id = ? AND seq >= ?", (session_id, first))
            return first

    def add(self, key: str, session_id: str, seq: int, process_id: str) -> None:
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO told (key, session_id, seq, life, number) "
                "VALUES (?, ?, ?, ?, (SELECT COALESCE(MAX(number), 0) + 1 FROM told WHERE session_id = ?))",
                (key, session_id, seq, process_id, session_id),
            )

    def mark_safe(self, session_id: str, process_id: str) -> None:
        """Mark the deliveries of a session to this process as safe, and prune old ones."""
        with self._db:
            self._db.execute("UPDATE told SET life = '' WHERE session_id = ? AND life = ?", (session_id, process_id))
            self._db.execute(
                "DELETE FROM told WHERE session_id = ? AND life = '' AND number <= "
                "(SELECT MAX(number) FROM told WHERE session_id = ?) - ?",
                (session_id, session_id, KEPT_MAX),
            )
