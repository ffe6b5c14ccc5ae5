"""The port between the tables and a database engine.

The SQL of this package is portable: `?` parameters, `ON CONFLICT`, `RETURNING`, standard functions. Everything that
differs by engine is a method here, or stands in `search_index`, the only module that names FTS5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Execute(Protocol):
    """Run one statement with `?` parameters to its end and return its rows."""

    def __call__(self, sql: str, parameters: Sequence[Any] = (), /) -> list[tuple[Any, ...]]: ...


class Database(Protocol):
    """One connection to the engine. Errors are the engine's own; the `Store` translates them to `StoreError`."""

    @property
    def execute(self) -> Execute: ...

    @property
    def first_replay(self) -> int:
        """The replay number that new cursors start with.

        A restored store starts with a number of its own: providers have seen the lower ones with other contents.
        """
        ...

    def insert(self, sql: str, parameters: Sequence[Any], /) -> int:
        """Insert one row into a table with a generated `id`, and return that id."""
        ...

    def begin(self, *, write: bool) -> None:
        """Start a transaction: with the write lock, or on a snapshot that is only read."""
        ...

    def commit(self) -> None:
        """End the transaction and make it durable."""
        ...

    def rollback(self) -> None:
        """Discard the transaction. Does nothing if the engine has ended it already."""
        ...

    def is_retryable(self, error: BaseException) -> bool:
        """Return whether the same transaction may succeed later: another one held a lock that it needed."""
        ...


class Table:
    """Base of the table groups: runs their statements."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._execute = database.execute

    def _first(self, sql: str, parameters: Sequence[Any] = (), /) -> tuple[Any, ...] | None:
        """Run a statement and return its first row, or None."""
        rows = self._execute(sql, parameters)
        return rows[0] if rows else None

    def _exists(self, sql: str, parameters: Sequence[Any] = (), /) -> bool:
        """Run a statement and return True if it returns a row."""
        return bool(self._execute(sql, parameters))

    def _value(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement that always returns a row, and return its first column."""
        return self._execute(sql, parameters)[0][0]
