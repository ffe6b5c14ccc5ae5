"""What a plugin has acknowledged, by the keys of the deliveries: it knows no keys itself.

What was told to a process that has died since may be lost with it, because plugins keep things back until a session
ends. So each delivery is written down with the life it was told to, until that session is closed or let go in good
order.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw

KEPT_MAX = 64
"""Of a session, behind its last close: nothing older is delivered again but by a replay, which has other keys."""

_TABLE = """
CREATE TABLE IF NOT EXISTS told (
    key TEXT PRIMARY KEY, session_id TEXT NOT NULL, seq INTEGER NOT NULL, life TEXT NOT NULL, number INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS told_session ON told (session_id, number);
"""


class Ledger:
    """One file; `life` is a process of a plugin's, and "" stands for what is safe whatever happens to one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        self.lock = asyncio.Lock()
        """For whoever calls it from threads."""
        self._db: Any = apsw.Connection(str(path))
        self._db.set_busy_timeout(5000)
        self._db.execute(_TABLE)

    def close(self) -> None:
        self._db.close()

    def is_told(self, key: str) -> bool:
        return any(self._db.execute("SELECT 1 FROM told WHERE key = ?", (key,)))

    def lost(self, session_id: str, life: str) -> int | None:
        """The first entry that was told to another life, and is not known to be safe.

        It and those behind it count as not told from now on.
        """
        with self._db:
            found = self._db.execute(
                "DELETE FROM told WHERE session_id = ? AND life NOT IN ('', ?) RETURNING seq", (session_id, life)
            )
            first = min((seq for (seq,) in found), default=None)
            if first is not None:
                self._db.execute("DELETE FROM told WHERE session_id = ? AND seq >= ?", (session_id, first))
            return first

    def add(self, key: str, session_id: str, seq: int, life: str) -> None:
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO told (key, session_id, seq, life, number) "
                "VALUES (?, ?, ?, ?, (SELECT COALESCE(MAX(number), 0) + 1 FROM told WHERE session_id = ?))",
                (key, session_id, seq, life, session_id),
            )

    def settle(self, session_id: str, life: str) -> None:
        """What that life was told of a session is safe."""
        with self._db:
            self._db.execute("UPDATE told SET life = '' WHERE session_id = ? AND life = ?", (session_id, life))
            self._db.execute(
                "DELETE FROM told WHERE session_id = ? AND life = '' AND number <= "
                "(SELECT MAX(number) FROM told WHERE session_id = ?) - ?",
                (session_id, session_id, KEPT_MAX),
            )
