"""Sessions, bindings of keys, the audit trail of boundaries, and processes that serve sessions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from everthread.domain import titles
from everthread.domain.model import Binding, Session, SessionKey, SessionRef
from everthread.store import session_list as listing
from everthread.store.database import Table
from everthread.store.session_list import CAUSES, COLUMNS, KINDS, OF_SESSION, session_of
from everthread.store.sql import key_of


class BoundaryRow(Struct, frozen=True):
    """A boundary in the audit trail."""

    kind: str
    key: SessionKey
    owner: str
    from_session: str | None
    to_session: str | None
    epoch: int
    actor: str
    at: float
    id: int = 0


class KeyState(Struct, frozen=True):
    """A key's binding and session, the other keys on the session, and what waits."""

    binding: Binding | None = None
    session: Session | None = None
    other_keys: tuple[SessionKey, ...] = ()
    """The other keys on the session."""
    running: SessionKey | None = None
    """The key whose turn runs in the session."""
    awaited: bool = True
    """False if no message waits at the key."""
    timer_at: float | None = None
    """The time of the requested timer; None if it is not set."""


BASE_CHARS = 80
NAMED_LOOKED_AT = 500

_CHANGING = (
    "ended_at = ?, end_reason = ?, active_at = ?, last_turn = ?, log_seq = ?, dirty_seq = ?, closed_seq = ?, "
    "forgotten_seq = ?, generation = ?"
)
# Stored keys have no line breaks.
_OTHER_KEYS = "(SELECT string_agg(o.key, '\n') FROM bindings o WHERE o.session_id = b.session_id AND o.key <> b.key)"
_RUNNING = "(SELECT slots.key FROM slots WHERE slots.session_id = b.session_id AND slots.fate = 'live')"
_IS_CONTINUED = (
    "EXISTS (SELECT 1 FROM sessions c WHERE c.parent_id = s.id AND c.cause = 'compression' AND c.forgotten_seq IS NULL)"
)
# The condition of `Inbox.waiting`.
_AWAITED = (
    "EXISTS (SELECT 1 FROM inbox i WHERE i.key = b.key AND i.state IN ('waiting', 'running') AND i.state = 'waiting' "
    "AND NOT i.command)"
)
_TIMER_AT = "(SELECT timers.due_at FROM timers WHERE timers.name = ?)"
_BOUNDARY = "kind, key, owner, from_session, to_session, epoch, actor, at, id"


def _boundary(row: tuple[Any, ...]) -> BoundaryRow:
    return BoundaryRow(row[0], key_of(row[1]), *row[2:])


def _changing_values(s: Session) -> tuple[Any, ...]:
    return (
        *(s.ended_at, s.end_reason, s.active_at, s.last_turn, s.log_seq, s.dirty_seq, s.closed_seq, s.forgotten_seq),
        s.generation,
    )


def _binding(key: SessionKey, row: tuple[Any, ...]) -> Binding:
    return Binding(key, row[0], row[1], row[2], CAUSES[row[3]] if row[3] else None, KINDS[row[4]])


class Sessions(Table):
    """Sessions and the keys that are bound to them."""

    def get(self, session_id: str) -> Session | None:
        row = self._first(f"SELECT {COLUMNS} FROM sessions WHERE id = ?", (session_id,))
        return session_of(row) if row else None

    def add(self, session: Session) -> None:
        s = session
        self._execute(
            f"INSERT INTO sessions ({COLUMNS}, title_fold, title_base) VALUES ({'?, ' * 22}?)",
            (
                *(s.id, s.owner, str(s.key), s.kind, s.cause, s.opened_at, s.parent_id, s.title),
                *(s.generation, s.ended_at, s.end_reason, s.active_at, s.floor, s.base_turn, s.base_seq),
                *(s.summary_id, s.last_turn, s.log_seq, s.dirty_seq, s.closed_seq, s.forgotten_seq),
                *folded(s.title),
            ),
        )

    def save(self, session: Session) -> None:
        """Update a session. If its generation has grown, use `renew`."""
        self._execute(f"UPDATE sessions SET {_CHANGING} WHERE id = ?", (*_changing_values(session), session.id))

    def newest_activity(self) -> float:
        """Return the newest activity of the sessions that keys are on; 0.0 if there is none."""
        statement = "SELECT COALESCE(MAX(s.active_at), 0.0) FROM bindings b JOIN sessions s ON s.id = b.session_id"
        return self._value(statement)

    def lower_activities(self, now: float, latest: float) -> tuple[SessionKey, ...]:
        """Replace activities after `latest` by `now`, of the sessions that keys are on. Return these keys."""
        rows = self._execute(
            "SELECT b.key FROM bindings b JOIN sessions s ON s.id = b.session_id WHERE s.active_at > ? ORDER BY b.key",
            (latest,),
        )
        keys = tuple(key_of(row[0]) for row in rows)
        # The times of sessions that nobody is on are kept: nothing depends on them.
        self._execute(
            "UPDATE sessions SET active_at = ? WHERE active_at > ? AND id IN (SELECT session_id FROM bindings)",
            (now, latest),
        )
        return keys

    def renew(self, session: Session) -> None:
        """Update a session whose generation has grown, and the bindings of its keys."""
        self.save(session)
        bindings = "UPDATE bindings SET generation = ? WHERE session_id = ?"
        self._execute(bindings, (session.generation, session.id))

    def chosen_model(self, key: SessionKey) -> str:
        """Return the model chosen at the key, or an empty string for the default."""
        row = self._first("SELECT model FROM chosen_models WHERE key = ?", (str(key),))
        return row[0] if row else ""

    def chosen_models(self) -> tuple[tuple[str, str], ...]:
        """Return each owner with each model that they have chosen somewhere."""
        return tuple(self._execute("SELECT DISTINCT owner, model FROM chosen_models ORDER BY owner, model"))

    def choose_model(self, key: SessionKey, owner: str, model: str) -> None:
        self._execute("DELETE FROM chosen_models WHERE key = ?", (str(key),))
        if model:
            self._execute("INSERT INTO chosen_models (key, owner, model) VALUES (?, ?, ?)", (str(key), owner, model))

    def set_title(self, session_id: str, title: str | None) -> None:
        self._execute(
            "UPDATE sessions SET title = ?, title_fold = ?, title_base = ? WHERE id = ?",
            (title, *folded(title), session_id),
        )

    def tip(self, session_id: str) -> Session | None:
        """Return the newest continuation that is not forgotten: the session itself if it was never compressed."""
        row = self._first(f"SELECT {COLUMNS}, {_IS_CONTINUED} FROM sessions s WHERE id = ?", (session_id,))
        if row is None:
            return None
        if not row[-1]:
            # Most sessions have no continuation, and this check costs a third of the recursive query.
            return session_of(row[:-1])
        row = self._first(
            "WITH RECURSIVE line (id, depth) AS (SELECT ?, 0 UNION ALL "
            "SELECT s.id, depth + 1 FROM line JOIN sessions s ON s.parent_id = line.id "
            "AND s.cause = 'compression' AND s.forgotten_seq IS NULL) "
            f"SELECT {COLUMNS} FROM sessions WHERE id = ("
            "SELECT id FROM line ORDER BY depth DESC, id DESC LIMIT 1)",
            (session_id,),
        )
        return session_of(row) if row else None

    def titled(self, owner: str | None, title: str) -> tuple[Session, ...]:
        """Return sessions of the owner, or of all, whose titles have the same base, lowest number first."""
        _, base = folded(title)
        whose, values = _whose(owner)
        rows = self._execute(f"SELECT {COLUMNS} FROM sessions WHERE title_base = ? {whose}", (base, *values))
        found = [session_of(row) for row in rows]
        return tuple(sorted(found, key=lambda session: titles.split(session.title or "")[1]))

    def named(self, owner: str | None, beginning: str, limit: int) -> tuple[Session, ...]:
        """Return sessions of the owner, or of all, by the beginning of their titles; the newest for an empty one.

        For an empty beginning only the newest sessions are read.
        """
        whose, values = _whose(owner)
        if start := titles.fold(beginning):
            rows = self._execute(
                f"SELECT {COLUMNS} FROM sessions WHERE title_fold >= ? AND title_fold < ? {whose} "
                "ORDER BY title_fold, id LIMIT ?",
                (start, start + "\U0010ffff", *values, limit),
            )
        else:
            # Ids grow with time. Only the newest are read, so that a store with few titles is not scanned.
            rows = self._execute(
                f"SELECT {COLUMNS} FROM (SELECT * FROM sessions WHERE true {whose} ORDER BY id DESC "
                f"LIMIT {NAMED_LOOKED_AT}) AS newest WHERE title IS NOT NULL ORDER BY id DESC LIMIT ?",
                (*values, limit),
            )
        return tuple(session_of(row) for row in rows)

    def matching(self, id_prefix: str, limit: int, owner: str | None = None) -> tuple[Session, ...]:
        whose, values = _whose(owner)
        rows = self._execute(
            f"SELECT {COLUMNS} FROM sessions WHERE id >= ? AND id < ? {whose} ORDER BY id LIMIT ?",
            (id_prefix, id_prefix + "\U0010ffff", *values, limit),
        )
        return tuple(session_of(row) for row in rows)

    def recent(self, *, owner: str | None, limit: int, kind: str | None = None) -> tuple[Session, ...]:
        return listing.recent(self._execute, owner=owner, limit=limit, kind=kind)

    def conversations(self, limit: int, *, delegated: bool = False) -> tuple[Session, ...]:
        """Return conversations, the last active first. Forgotten sessions and sessions of notes are left out.

        Delegated and scheduled work is left out unless `delegated`.
        """
        return listing.conversations(self._execute, limit, delegated=delegated)

    def page(self, owner: str, limit: int, before: tuple[float, str] | None = None) -> tuple[Session, ...]:
        """Return the owner's conversations, the last active first, after the one with this time and id."""
        return listing.page(self._execute, owner, limit, before)

    def of_owner(self, owner: str) -> tuple[Session, ...]:
        rows = self._execute(f"SELECT {COLUMNS} FROM sessions WHERE owner = ? ORDER BY id", (owner,))
        return tuple(session_of(row) for row in rows)

    def descendants(self, session_id: str) -> tuple[Session, ...]:
        rows = self._execute(
            "WITH RECURSIVE line (id) AS (SELECT id FROM sessions WHERE parent_id = ? UNION "
            "SELECT s.id FROM line JOIN sessions s ON s.parent_id = line.id) "
            f"SELECT {COLUMNS} FROM sessions WHERE id IN (SELECT id FROM line)",
            (session_id,),
        )
        return tuple(session_of(row) for row in rows)

    def binding(self, key: SessionKey) -> Binding | None:
        row = self._first("SELECT owner, session_id, epoch, pending, kind FROM bindings WHERE key = ?", (str(key),))
        return _binding(key, row) if row else None

    def at(self, key: SessionKey) -> tuple[Binding | None, Session | None]:
        """Return a key's binding, and the session it is on."""
        row = self._first(
            f"SELECT b.owner, b.session_id, b.epoch, b.pending, b.kind, {OF_SESSION} FROM bindings b "
            "LEFT JOIN sessions s ON s.id = b.session_id WHERE b.key = ?",
            (str(key),),
        )
        if row is None:
            return None, None
        return _binding(key, row), session_of(row[5:]) if row[5] is not None else None

    def key_state(self, key: SessionKey, timer: str = "") -> KeyState:
        """Return everything that a boundary has to know about a key, with one query."""
        row = self._first(
            f"SELECT b.owner, b.session_id, b.epoch, b.pending, b.kind, {_OTHER_KEYS}, {_RUNNING}, {_AWAITED}, "
            f"{_TIMER_AT}, {OF_SESSION} FROM bindings b LEFT JOIN sessions s ON s.id = b.session_id WHERE b.key = ?",
            (timer, str(key)),
        )
        if row is None:
            return KeyState()
        others, running, awaited, timer_at = row[5:9]
        return KeyState(
            _binding(key, row),
            session_of(row[9:]) if row[9] is not None else None,
            tuple(key_of(other) for other in sorted(others.split("\n"))) if others else (),
            key_of(running) if running else None,
            bool(awaited),
            timer_at,
        )

    def ref(self, key: SessionKey) -> SessionRef | None:
        """Return a reference to the session that the key is on."""
        row = self._first(
            "SELECT session_id, generation, epoch, owner FROM bindings WHERE key = ? AND session_id IS NOT NULL",
            (str(key),),
        )
        return SessionRef(row[0], row[1], key, row[2], row[3]) if row else None

    def bind(self, binding: Binding, *, same_owner: bool = False) -> None:
        """Bind a key to a session or to none. With `same_owner`, the key is known to belong to the same owner."""
        b = binding
        self._execute(
            "INSERT INTO bindings (key, owner, session_id, epoch, pending, kind, generation) "
            "VALUES (?, ?, ?, ?, ?, ?, (SELECT generation FROM sessions WHERE id = ?)) "
            "ON CONFLICT (key) DO UPDATE SET session_id = excluded.session_id, epoch = excluded.epoch, "
            "pending = excluded.pending, kind = excluded.kind, generation = excluded.generation",
            (
                *(str(b.key), b.owner, b.session_id, b.epoch, b.pending),
                *(b.kind, b.session_id),
            ),
        )
        if same_owner:
            return
        # A separate statement: most bindings keep their owner, and the index on it need not be written.
        self._execute("UPDATE bindings SET owner = ? WHERE key = ? AND owner <> ?", (b.owner, str(b.key), b.owner))

    def keys_on(self, session_id: str) -> tuple[SessionKey, ...]:
        rows = self._execute("SELECT key FROM bindings WHERE session_id = ? ORDER BY key", (session_id,))
        return tuple(key_of(row[0]) for row in rows)

    def keys_of(self, owner: str) -> tuple[SessionKey, ...]:
        """Return the owner's keys, the last active first."""
        rows = self._execute(
            "SELECT b.key FROM bindings b LEFT JOIN sessions s ON s.id = b.session_id WHERE b.owner = ? "
            "ORDER BY s.active_at DESC NULLS LAST, b.key",
            (owner,),
        )
        return tuple(key_of(key) for (key,) in rows)

    def has_key(self, beginning: str) -> bool:
        """Return True if a key begins with this text, which ends with a colon."""
        after = beginning[:-1] + chr(ord(beginning[-1]) + 1)
        return self._exists("SELECT 1 FROM bindings WHERE key >= ? AND key < ? LIMIT 1", (beginning, after))

    def add_boundary(self, row: BoundaryRow) -> None:
        self._execute(
            "INSERT INTO boundaries (kind, key, owner, from_session, to_session, epoch, actor, at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (row.kind, str(row.key), row.owner, row.from_session, row.to_session, row.epoch, row.actor, row.at),
        )

    def last_boundary(self) -> int:
        """Return the id of the last boundary."""
        return self._value("SELECT MAX(id) FROM boundaries")

    def boundary(self, boundary_id: int) -> BoundaryRow | None:
        row = self._first(f"SELECT {_BOUNDARY} FROM boundaries WHERE id = ?", (boundary_id,))
        return _boundary(row) if row else None

    def boundaries(
        self, *, limit: int, session_id: str | None = None, kind: str | None = None
    ) -> tuple[BoundaryRow, ...]:
        clauses = (
            ["true"]
            + ["? IN (from_session, to_session)"] * (session_id is not None)
            + ["kind = ?"] * (kind is not None)
        )
        values = [value for value in (session_id, kind) if value is not None]
        rows = self._execute(
            f"SELECT {_BOUNDARY} FROM boundaries WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?",
            (*values, limit),
        )
        return tuple(_boundary(row) for row in rows)

    def serve(self, holder: str, session_id: str, key: SessionKey) -> None:
        """Record that the process serves the session."""
        self._execute(
            "INSERT INTO serving (holder, session_id, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (holder, session_id, str(key)),
        )

    def is_served(self, holder: str, session_id: str) -> bool:
        return self._exists("SELECT 1 FROM serving WHERE holder = ? AND session_id = ?", (holder, session_id))

    def served(self, holder: str) -> tuple[tuple[str, SessionKey], ...]:
        rows = self._execute("SELECT session_id, key FROM serving WHERE holder = ? ORDER BY session_id", (holder,))
        return tuple((row[0], key_of(row[1])) for row in rows)

    def end_serving(self, session_id: str) -> None:
        """Record that the session was finalized: no process serves it."""
        self._execute("DELETE FROM serving WHERE session_id = ?", (session_id,))

    def move_serving(self, from_session: str, to_session: str) -> None:
        """Record that processes serve the continuation of a session."""
        self._execute("UPDATE serving SET session_id = ? WHERE session_id = ?", (to_session, from_session))


def _whose(owner: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if owner is None else ("AND owner = ?", (owner,))


def folded(title: str | None) -> tuple[str | None, str | None]:
    """Return the folded title and the folded base of the title."""
    if title is None:
        return None, None
    # A long base is cut to make room for its number, so only the beginnings of such titles are equal.
    return titles.fold(title), titles.fold(titles.split(title)[0])[:BASE_CHARS]
