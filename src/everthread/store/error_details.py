"""Full texts of log records, which may quote a person. The log file has only their references."""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Table
from everthread.store.forgotten_facts import erase_facts_of, erase_forgotten_facts

KEPT_MAX = 1000
KEPT_S_MAX = 30 * 24 * 3600.0
CHARS_MAX = 5000
_DELETE_ONE = (
    # Of the owner who has most of them, so that nobody can fill the table until the texts of others are gone.
    "DELETE FROM error_details WHERE id = (SELECT MIN(id) FROM error_details "
    "GROUP BY owner ORDER BY COUNT(*) DESC, MIN(id) LIMIT 1)"
)


class ErrorDetail(Struct, frozen=True):
    """The full text of a log record, under the session or person that it concerns."""

    at: float
    reference: str
    logger: str
    text: str
    session_id: str | None = None
    owner: str = ""


class ErrorDetails(Table):
    def add(self, detail: ErrorDetail) -> None:
        """Add a text, unless its session or person has been forgotten since."""
        owner, session_id = detail.owner, detail.session_id
        row = None
        if session_id is not None:
            row = self._first("SELECT owner, forgotten_seq FROM sessions WHERE id = ?", (session_id,))
        if row is not None:
            if row[1] is not None:
                return
            owner = row[0]
        # The session may be in no store yet, or no longer; then its owner is known from the record only.
        elif self._was_forgotten(session_id, owner, detail.at):
            return
        text = detail.text[:CHARS_MAX]
        if owner:
            text = erase_facts_of(self._execute, text, owner)
        else:
            text = erase_forgotten_facts(self._execute, text, None)
        self._database.insert(
            "INSERT INTO error_details (reference, at, logger, session_id, owner, content) VALUES (?, ?, ?, ?, ?, ?)",
            (detail.reference, detail.at, detail.logger, session_id, owner, text),
        )
        self._execute("DELETE FROM error_details WHERE at < ?", (detail.at - KEPT_S_MAX,))
        if self._value("SELECT COUNT(*) FROM error_details") > KEPT_MAX:
            self._execute(_DELETE_ONE)

    def _was_forgotten(self, session_id: str | None, owner: str, at: float) -> bool:
        # A session does not come back, but a person may.
        sql = (
            "SELECT 1 FROM tombstones WHERE (kind = 'session' AND identity = ?) "
            "OR (kind = 'owner' AND identity = ? AND at >= ?)"
        )
        return self._exists(sql, (session_id or "", owner, at))

    def get(self, reference: str) -> tuple[ErrorDetail, ...]:
        """Return the texts with this reference, the oldest first: one failure may be logged more than once."""
        columns = "at, reference, logger, content, session_id, owner"
        sql = f"SELECT {columns} FROM error_details WHERE reference = ? ORDER BY id"
        return tuple(ErrorDetail(*row) for row in self._execute(sql, (reference,)))
