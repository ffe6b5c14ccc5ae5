"""Sessions as lists show them: the newest, and how many turns each shows. Cheap to import: people wait for a list."""

from __future__ import annotations

from typing import Any

from everthread.domain.model import Cause, Kind, Session
from everthread.store.database import Execute
from everthread.store.sql import by_value, first, key_of

COLUMNS = (
    "id, owner, key, kind, cause, opened_at, parent_id, title, generation, ended_at, end_reason, active_at, floor, "
    "base_turn, base_seq, summary_id, last_turn, log_seq, dirty_seq, closed_seq, forgotten_seq"
)
OF_SESSION = ", ".join(f"s.{column}" for column in COLUMNS.split(", "))
KINDS = by_value(Kind)
CAUSES = by_value(Cause)
# For a list of more than two, SQLite makes a table each time.
SHOWN = "status NOT IN ('hidden', 'set_aside')"


def session_of(row: tuple[Any, ...]) -> Session:
    """A session from its `COLUMNS`."""
    return Session(row[0], row[1], key_of(row[2]), KINDS[row[3]], CAUSES[row[4]], *row[5:])


def recent(execute: Execute, *, owner: str | None, limit: int, kind: str | None = None) -> tuple[Session, ...]:
    """The last active first."""
    clauses = ["true"] + ["owner = ?"] * (owner is not None) + ["kind = ?"] * (kind is not None)
    given = [value for value in (owner, kind) if value is not None]
    rows = execute(
        f"SELECT {COLUMNS} FROM sessions WHERE {' AND '.join(clauses)} ORDER BY active_at DESC, id DESC LIMIT ?",
        (*given, limit),
    )
    return tuple(session_of(row) for row in rows)


def conversations(execute: Execute, limit: int, *, delegated: bool = False) -> tuple[Session, ...]:
    """The same of any owner, of what a person has to do with: nothing forgotten, and no session that only has notes.

    Work that was delegated or scheduled is left out, unless it is asked for.
    """
    left_out = (Kind.NOTES, Kind.NOTES) if delegated else (Kind.SUBAGENT, Kind.CRON)
    kinds = (Kind.NOTES.value, *(kind.value for kind in left_out))
    shown = "forgotten_seq IS NULL AND kind NOT IN (?, ?, ?)"
    rows = execute(
        # The newest are chosen by as little as possible: sorting whole rows of many sessions would take twice as long.
        # And of few: as many as are wanted were begun last, and all of those were active since the first of them was.
        f"SELECT {COLUMNS} FROM sessions WHERE id IN (SELECT id FROM sessions WHERE active_at >= "
        f"(SELECT MIN(active_at) FROM (SELECT active_at FROM sessions WHERE {shown} ORDER BY id DESC LIMIT ?) "
        f"AS begun) AND {shown} ORDER BY active_at DESC, id DESC LIMIT ?) ORDER BY active_at DESC, id DESC",
        (*kinds, limit, *kinds, limit),
    )
    return tuple(session_of(row) for row in rows)


def page(execute: Execute, owner: str, limit: int, before: tuple[float, str] | None = None) -> tuple[Session, ...]:
    """The same of one owner, behind the one that was active then and has that id."""
    clauses = ["true"] + ["(active_at, id) < (?, ?)"] * (before is not None)
    rows = execute(
        f"SELECT {COLUMNS} FROM sessions WHERE owner = ? AND forgotten_seq IS NULL AND kind NOT IN (?, ?, ?) "
        f"AND {' AND '.join(clauses)} ORDER BY active_at DESC, id DESC LIMIT ?",
        (owner, Kind.NOTES.value, Kind.SUBAGENT.value, Kind.CRON.value, *(before or ()), limit),
    )
    return tuple(session_of(row) for row in rows)


def shown_turns(execute: Execute, session: Session) -> int:
    """How many turns the session shows, inherited ones included: what its view holds, counted where it lies."""
    row = first(
        execute(
            # The segments of the view, as `Turns` walks them.
            "WITH RECURSIVE line (id, parent_id, bottom, top, seq, base_seq) AS ("
            "SELECT id, parent_id, base_turn, last_turn, log_seq, base_seq FROM sessions WHERE id = ? UNION ALL "
            "SELECT s.id, s.parent_id, s.base_turn, CASE WHEN bottom < top THEN bottom ELSE top END, line.base_seq, "
            "s.base_seq FROM line JOIN sessions s ON s.id = line.parent_id WHERE bottom > ? AND top > ?) "
            "SELECT COUNT(*) FROM line JOIN turns t ON t.session_id = line.id AND t.number > line.bottom "
            f"AND t.number > ? AND t.number <= line.top AND t.{SHOWN} WHERE NOT EXISTS (SELECT 1 FROM line l "
            "CROSS JOIN hidden h WHERE h.session_id = l.id AND h.number = t.number AND h.seq <= l.seq)",
            (session.id, session.floor, session.floor, session.floor),
        )
    )
    assert row is not None
    return row[0]
