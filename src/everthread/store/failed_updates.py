"""Updates of platforms whose handling failed unexpectedly, kept until a retry succeeds."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.clock_rules import latest_deadline
from everthread.store.database import Table

KEPT_MAX = 200
CONTENT_CHARS_MAX = 65_536
RETRY_S_MAX = 3600.0

_COLUMNS = 'platform, account, update_id, "user", owner, content, problem, attempts, at, retry_at'


class FailedUpdate(Struct, frozen=True):
    platform: str
    account: str
    update_id: str
    user: str
    owner: str
    """The owner of the message; the account of the sender if the owner is not known."""
    content: str
    """The update as JSON."""
    problem: str
    """The class name of the last error, which quotes nothing of the update."""
    attempts: int
    at: float
    retry_at: float
    id: int = 0


class FailedUpdates(Table):
    """At most `KEPT_MAX` updates of `CONTENT_CHARS_MAX` characters each; the oldest is dropped for a new one."""

    def add(self, update: FailedUpdate) -> None:
        """Keep an update. One that is kept already stays as it is."""
        u = update
        rows = self._execute(
            f"INSERT INTO failed_updates ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING id",
            (u.platform, u.account, u.update_id, u.user, u.owner, u.content, u.problem, u.attempts, u.at, u.retry_at),
        )
        for (newest,) in rows:
            self._execute("DELETE FROM failed_updates WHERE id <= ?", (newest - KEPT_MAX,))

    def due(self, now: float, limit: int) -> tuple[FailedUpdate, ...]:
        """Return updates to retry, the oldest first."""
        rows = self._execute(
            f"SELECT {_COLUMNS}, id FROM failed_updates WHERE retry_at <= ? OR retry_at > ? ORDER BY id LIMIT ?",
            (now, latest_deadline(now, RETRY_S_MAX), limit),
        )
        return tuple(FailedUpdate(*row) for row in rows)

    def newest(self, limit: int) -> tuple[FailedUpdate, ...]:
        rows = self._execute(f"SELECT {_COLUMNS}, id FROM failed_updates ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(FailedUpdate(*row) for row in rows)

    def make_due(self, now: float) -> None:
        """Make every update due now."""
        self._execute("UPDATE failed_updates SET retry_at = ? WHERE retry_at > ?", (now, now))

    def record_failure(self, row_id: int, problem: str, retry_at: float) -> None:
        self._execute(
            "UPDATE failed_updates SET problem = ?, attempts = attempts + 1, retry_at = ? WHERE id = ?",
            (problem, retry_at, row_id),
        )

    def remove(self, row_id: int) -> None:
        self._execute("DELETE FROM failed_updates WHERE id = ?", (row_id,))
