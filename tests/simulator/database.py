"""In-memory databases of simulations."""

from __future__ import annotations

from typing import Any

import apsw

from everthread.adapters.sqlite.connection import Connection
from everthread.adapters.sqlite.migrate import migrate
from tests.simulator.event_loop import PROCESS

# Forgetting rewrites notes and restarts reviews without a reported operation, so triggers record their changes.
_WITNESS = (
    "CREATE TEMP TABLE notes_written (note_id, version)",
    "CREATE TEMP TRIGGER note_written AFTER INSERT ON main.note_versions BEGIN INSERT INTO notes_written VALUES "
    "(new.note_id, new.version); END",
    "CREATE TEMP TABLE review_changes (session_id, from_turn, to_turn, before, held_by, after, holder, writer)",
    "CREATE TEMP TRIGGER review_changed AFTER UPDATE OF state ON main.reviews BEGIN INSERT INTO review_changes VALUES "
    "(new.session_id, new.from_turn, new.to_turn, old.state, old.holder, new.state, new.holder, writer()); END",
)
_TEMPLATE: list[bytes] = []
_RETURNED: list[Connection] = []
"""Databases of earlier simulations, empty again."""


def fresh_database() -> Connection:
    """Create an empty in-memory database from a template."""
    # The product's cache of 256 statements is enough for one process, not for two and the checks.
    connection: Any = apsw.Connection(":memory:", statementcachesize=512)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if not _TEMPLATE:
        migrate(connection, ":memory:")
        _TEMPLATE.append(connection.serialize("main"))
    connection.deserialize("main", _TEMPLATE[0])
    return connection


def borrow_database() -> Connection:
    """Return an empty database inside a transaction that `return_database` undoes.

    The connection is used again by the next simulation: SQLite then prepares each statement once in a process, not
    once in a seed.
    """
    database = _RETURNED.pop() if _RETURNED else _observed_database()
    database.execute("BEGIN")
    return database


def return_database(database: Connection) -> None:
    """Undo everything that a simulation has written."""
    database.execute("ROLLBACK")
    _RETURNED.append(database)


def _writer() -> str:
    process = PROCESS.get()
    return process.name if process is not None else ""


def _observed_database() -> Connection:
    # Before the transaction: SQLite reads a schema that was changed in it again after each savepoint that is undone.
    database: Any = fresh_database()
    database.create_scalar_function("writer", _writer, 0)
    for sql in _WITNESS:
        database.execute(sql)
    return database
