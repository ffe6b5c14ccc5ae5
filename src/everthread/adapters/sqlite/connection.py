"""Connections to the SQLite file, and the translation of SQLite's errors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import apsw

from everthread.domain.errors import DiskFull, StoreBusy, StoreCorrupt, StoreError, StoreUnwritable
from everthread.domain.model import replace_surrogates
from everthread.store.database import Execute

BUSY_S_MAX = 5.0
CACHE_KIB = 65_536
_LOOKASIDE_BYTES = 1_200
_LOOKASIDE_PIECES = 1000
_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def _set_up_sqlite() -> None:
    """Configure SQLite for the process, unless a connection is open already.

    A running statement takes its memory from its connection's lookaside buffer, here about a megabyte. A prepared
    statement uses some twenty slots; of SQLite's default hundred, none would be left for running. Memory statistics
    are off: they take a lock at each allocation, and nothing reads them.
    """
    if apsw.connections():
        return
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_MEMSTATUS, False)
    apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, _LOOKASIDE_BYTES, _LOOKASIDE_PIECES)
    apsw.initialize()


_set_up_sqlite()


class RawExecute(Protocol):
    """Start a statement; its rows are fetched as they are iterated over."""

    def __call__(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]: ...


class Cursor(Protocol):
    """Run statements one after the other: each ends the one before it."""

    @property
    def execute(self) -> RawExecute: ...


class Connection(Protocol):
    """The methods of an apsw connection that this package uses."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]: ...
    def cursor(self) -> Cursor: ...
    def pragma(self, name: str, /) -> Any: ...
    def last_insert_rowid(self) -> int: ...
    def set_busy_timeout(self, milliseconds: int, /) -> None: ...
    def set_wal_hook(self, hook: Callable[[object, str, int], int], /) -> None: ...
    def close(self) -> None: ...


def connect_bare(path: str, *, busy_s_max: float = BUSY_S_MAX, flags: int = _READ_WRITE) -> Any:
    """Open a connection without changing anything in the file."""
    connection = cast(Any, apsw).Connection(path, flags=flags, statementcachesize=256)
    connection.set_busy_timeout(int(busy_s_max * 1000))
    return connection


@contextmanager
def open_bare(path: str | Path, *, busy_s_max: float = BUSY_S_MAX, flags: int = _READ_WRITE) -> Generator[Any]:
    """Open a connection as `connect_bare` does, close it, and translate SQLite's errors."""
    try:
        with closing(connect_bare(str(path), busy_s_max=busy_s_max, flags=flags)) as connection:
            yield connection
    except apsw.Error as error:
        raise translate_error(error, str(path)) from error


def connect(path: str, *, busy_s_max: float = BUSY_S_MAX, cache_kib: int = CACHE_KIB) -> Connection:
    """Open a connection with the settings that every connection of the store has."""
    connection = connect_bare(path, busy_s_max=busy_s_max)
    # Otherwise SQLite plans a query at every use if a bound value might allow a partial index.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # Full durability: a commit survives a power cut. Freed pages are overwritten, so that erased text does not stay
    # in the file. The cache holds the upper pages of the B-trees: with thousands of conversations they do not fit
    # into SQLite's default of 2 MB, and a message costs twice as much.
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "secure_delete = ON",
        "temp_store = MEMORY",
        f"cache_size = -{cache_kib}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


class SqliteDatabase:
    """The `Database` of the tables, on one connection."""

    def __init__(self, connection: Connection, execute: RawExecute | None = None) -> None:
        self.connection = connection
        self.execute = _run_to_the_end(execute or connection.cursor().execute)

    @property
    def first_replay(self) -> int:
        return self.connection.pragma("user_version")

    def insert(self, sql: str, parameters: Sequence[Any], /) -> int:
        # Half the cost of RETURNING, for which SQLite fills a temporary table.
        self.execute(sql, parameters)
        return self.connection.last_insert_rowid()

    def begin(self, *, write: bool) -> None:
        self.connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        # Some errors, a full disk among them, have ended the transaction already.
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def is_retryable(self, error: BaseException) -> bool:
        return isinstance(error, StoreBusy | apsw.BusyError | apsw.LockedError)


def _run_to_the_end(execute: RawExecute) -> Execute:
    """Fetch all rows of a statement before the next one, so that all statements can share one cursor.

    Lone surrogates among the parameters are replaced: no turn is lost because of one.
    """

    def run(sql: str, parameters: Sequence[Any] = (), /) -> list[tuple[Any, ...]]:
        try:
            return list(execute(sql, parameters))
        except UnicodeEncodeError:
            return list(
                execute(sql, [replace_surrogates(value) if isinstance(value, str) else value for value in parameters])
            )

    return run


def translate_error(error: apsw.Error, path: str) -> StoreError:
    """Translate an error of SQLite to a `StoreError` that says what to do."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path}: Another program holds the write lock. Try again.")
        case apsw.FullError() | apsw.IOError(extendedresult=apsw.SQLITE_IOERR_SHMSIZE):
            return DiskFull(f"{path}: The disk has no room left. Nothing was lost; free some space and try again.")
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreCorrupt(f"{path}: The file is damaged or not an Everthread database. Restore a backup.")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return StoreUnwritable(
                f"{path}: The file can't be opened for writing. Check its folder and its permissions."
            )
        case _:
            return StoreError(f"{path}: {error}")
