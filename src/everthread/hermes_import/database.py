"""Read a copy of Hermes's `state.db`, of any version. Missing columns are None."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import apsw

from everthread.domain.errors import BadInput, StoreCorrupt
from everthread.hermes_import.rows import MessageRow, SessionRow, time_of
from everthread.hermes_import.snapshot import copy_snapshot

SCHEMAS = range(16, 23)
"""Tested schema versions."""
_SESSIONS = """id source user_id parent_session_id started_at ended_at end_reason title model_config session_key chat_id
    chat_type thread_id expiry_finalized""".split()
_MESSAGES = """id role content timestamp tool_call_id tool_calls tool_name finish_reason reasoning reasoning_content
    reasoning_details active compacted observed""".split()
_WORDS = frozenset((*_MESSAGES, *_SESSIONS)) - {
    *("id", "timestamp", "active", "compacted", "observed", "started_at", "ended_at", "expiry_finalized")
}


class Connection(Protocol):
    """The SQLite connection methods in use."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]: ...
    def close(self, force: bool = ..., /) -> None: ...


class Database:
    """Queries on a Hermes database."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._select = self._statement("messages", _MESSAGES)

    @property
    def schema(self) -> int:
        found = self._rows("SELECT version FROM schema_version LIMIT 1") if self._has("schema_version") else ()
        return next((row[0] for row in found if isinstance(row[0], int)), 0)

    def count(self) -> int:
        """Return the number of messages."""
        return next(iter(self._rows("SELECT COUNT(*) FROM messages")))[0]

    def sessions(self) -> Iterator[SessionRow]:
        for row in self._rows(self._statement("sessions", _SESSIONS) + " ORDER BY started_at, id"):
            yield _session(dict(zip(_SESSIONS, row, strict=True)))

    def messages(self, session_id: str) -> Iterator[MessageRow]:
        for row in self._rows(self._select + " WHERE session_id = CAST(? AS TEXT) ORDER BY id", (session_id,)):
            yield _message(row)

    def stray(self) -> int:
        """Return the number of messages without a session."""
        return next(
            iter(self._rows("SELECT COUNT(*) FROM messages WHERE session_id NOT IN (SELECT id FROM sessions)"))
        )[0]

    def routing(self) -> dict[str, str]:
        """Return the JSON entries of `gateway_routing` by session key; empty in versions without that table."""
        if not self._has("gateway_routing"):
            return {}
        statement = (
            "SELECT CAST(session_key AS BLOB), CAST(entry_json AS BLOB) FROM gateway_routing ORDER BY updated_at"
        )
        return {_text(key): _text(entry) for key, entry in self._rows(statement)}

    def _statement(self, table: str, wanted: Sequence[str]) -> str:
        existing = {_text(row[1]) for row in self._rows(f"PRAGMA table_info({table})")}
        if not {"id", wanted[1]} <= existing:
            raise BadInput(f"{self._name}: has no valid table {table}; give the folder of a Hermes home")
        # Read text as bytes, because invalid UTF-8 would raise an error.
        columns = ", ".join(
            (f"CAST({name} AS BLOB)" if name in _WORDS else name) if name in existing else "NULL" for name in wanted
        )
        return f"SELECT {columns} FROM {table}"

    def _has(self, table: str) -> bool:
        return any(True for _ in self._rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)))

    def _rows(self, statement: str, bindings: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._connection.execute(statement, bindings)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise StoreCorrupt(
                f"{self._name}: can't be read ({error}); repair it with Hermes, or use a backup of it"
            ) from error


@contextmanager
def open_database(path: Path) -> Generator[Database]:
    """Open a snapshot of the database; Hermes may be running. Nothing is written beside the original."""
    with copy_snapshot(path) as copy:
        try:
            connection = cast(Connection, apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READWRITE))
            connection.execute("PRAGMA trusted_schema = OFF")
            # Some versions lack this index; without it, every session would scan the whole table of the copy.
            connection.execute("CREATE INDEX IF NOT EXISTS everthread_import ON messages (session_id, id)")
        except apsw.Error as error:
            raise StoreCorrupt(f"{path}: not a database of Hermes, or damaged ({error})") from error
        try:
            yield Database(connection, str(path))
        finally:
            connection.close(True)


def _session(row: dict[str, Any]) -> SessionRow:
    started_at = time_of(row["started_at"])
    ended = row["ended_at"]
    return SessionRow(
        _text(row["id"]),
        _text(row["source"]) or "cli",
        _some(row["user_id"]),
        _some(row["parent_session_id"]),
        started_at,
        time_of(ended, started_at) if ended is not None else None,
        _some(row["end_reason"]),
        _some(row["title"]),
        _marks(row["model_config"]),
        _some(row["session_key"]),
        _some(row["chat_id"]),
        _some(row["chat_type"]),
        _some(row["thread_id"]),
        bool(row["expiry_finalized"]),
    )


def _message(row: tuple[Any, ...]) -> MessageRow:
    number, role, content, at, call_id, calls, name, finish, thought, thinking, details, active, compacted, seen = row
    return MessageRow(
        number,
        role.decode(errors="replace") if role else "",
        content.decode(errors="replace") if content else "",
        time_of(at),
        call_id.decode(errors="replace") if call_id else None,
        calls.decode(errors="replace") if calls else None,
        name.decode(errors="replace") if name else None,
        _reasoning(thought, thinking, details),
        finish.decode(errors="replace") if finish else None,
        active is None or bool(active),
        bool(compacted),
        bool(seen),
    )


def _reasoning(*written: bytes | None) -> str | None:
    """Return the first non-empty value. The last one is JSON, of which the texts are joined."""
    for some in written[:2]:
        if some:
            return some.decode(errors="replace")
    try:
        found: object = json.loads(written[2] or b"null")
    except (ValueError, RecursionError):
        return None
    parts = cast("list[object]", found) if isinstance(found, list) else []
    texts = [cast("dict[str, object]", part) for part in parts if isinstance(part, dict)]
    lines = [str(part.get("text") or part.get("summary") or part.get("thinking") or "") for part in texts]
    return "\n".join(filter(None, lines)) or None


def _marks(written: object) -> dict[str, Any]:
    try:
        found: object = json.loads(_text(written) or "{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _some(value: object) -> str | None:
    return _text(value) or None
