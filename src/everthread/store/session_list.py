"""Lists of sessions, and the number of turns each shows. Kept small: `sessions list` must start fast."""

from __future__ import annotations

from typing import Any

from everthread.domain.model import Cause, Session, SessionKind
from everthread.store.database import Execute
from everthread.store.sql import by_value, key_of

COLUMNS = (
    "id, owner, key, kind, cause, opened_at, parent_id, title, generation, ended_at, end_reason, active_at, floor, "
    "base_turn, base_seq, summary_id, last_turn, log_seq, dirty_seq, closed_seq, forgotten_seq"
)
OF_SESSION = ", ".join(f"s.{column}" for column in COLUMNS.split(", "))
KINDS = by_value(SessionKind)
CAUSES = by_value(Cause)
# SQLite builds a temporary table for a list of more than two.
SHOWN = "status NOT IN ('hidden', 'set_aside')"


def session_of(row: tuple[Any, ...]) -> Session:
    """Build a session from a row of `COLUMNS`."""
    return Session(row[0], row[1], key_of(row[2]), KINDS[row[3]], CAUSES[row[4]], *row[5:])


def recent(execute: Execute, *, owner: str | None, limit: int, kind: str | None = None) -> tuple[Session, ...]:
    """Return sessions, the last active first."""
    clauses = ["true"] + ["owner = ?"] * (owner is not None) + ["kind = ?"] * (kind is not None)
    values = [value for value in (owner, kind) if value is not None]
    rows = execute(
        f"SELECT {COLUMNS} FROM sessions WHERE {' AND '.join(clauses)} ORDER BY active_at DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return tuple(session_of(row) for row in rows)


def conversations(execute: Execute, limit: int, *, delegated: bool = False) -> tuple[Session, ...]:
    """Return conversations of any owner, the last active first. Forgotten sessions and sessions of notes are left out.

    Delegated and scheduled work is left out unless `delegated`.
    """
    left_out = (SessionKind.NOTES, SessionKind.NOTES) if delegated else (SessionKind.SUBAGENT, SessionKind.CRON)
    kinds = (SessionKind.NOTES.value, *(kind.value for kind in left_out))
    shown = "forgotten_seq IS NULL AND kind NOT IN (?, ?, ?)"
    rows = execute(
        # Ids are sorted, not rows, which takes half the time. Only sessions active since the oldest of the last
        # `limit` begun ones are candidates.
        f"SELECT {COLUMNS} FROM sessions WHERE id IN (SELECT id FROM sessions WHERE active_at >= "
        f"(SELECT MIN(active_at) FROM (SELECT active_at FROM sessions WHERE {shown} ORDER BY id DESC LIMIT ?) "
        f"AS begun) AND {shown} ORDER BY active_at DESC, id DESC LIMIT ?) ORDER BY active_at DESC, id DESC",
        (*kinds, limit, *kinds, limit),
    )
    return tuple(session_of(row) for row in rows)


def page(execute: Execute, owner: str, limit: int, before: tuple[float, str] | None = None) -> tuple[Session, ...]:
    """Return the owner's conversations, the last active first, after the one with this time and id."""
    clauses = ["true"] + ["(active_at, id) < (?, ?)"] * (before is not None)
    rows = execute(
        f"SELECT {COLUMNS} FROM sessions WHERE owner = ? AND forgotten_seq IS NULL AND kind NOT IN (?, ?, ?) "
        f"AND {' AND '.join(clauses)} ORDER BY active_at DESC, id DESC LIMIT ?",
        (owner, SessionKind.NOTES.value, SessionKind.SUBAGENT.value, SessionKind.CRON.value, *(before or ()), limit),
    )
    return tuple(session_of(row) for row in rows)


def shown_turns(execute: Execute, session: Session) -> int:
    """Count the turns that the session shows, inherited ones included."""
    return execute(
        # The same segments as `Turns.segments`.
        "WITH RECURSIVE line (id, parent_id, bottom, top, seq, base_seq) AS ("
        "SELECT id, parent_id, base_turn, last_turn, log_seq, base_seq FROM sessions WHERE id = ? UNION ALL "
        "SELECT s.id, s.parent_id, s.base_turn, CASE WHEN bottom < top THEN bottom ELSE top END, line.base_seq, "
        "s.base_seq FROM line JOIN sessions s ON s.id = line.parent_id WHERE bottom > ? AND top > ?) "
        "SELECT COUNT(*) FROM line JOIN turns t ON t.session_id = line.id AND t.number > line.bottom "
        f"AND t.number > ? AND t.number <= line.top AND t.{SHOWN} WHERE NOT EXISTS (SELECT 1 FROM line l "
        "CROSS JOIN hidden h WHERE h.session_id = l.id AND h.number = t.number AND h.seq <= l.seq)",
        (session.id, session.floor, session.floor, session.floor),
    )[0][0]
