"""Maintenance of the store's file: check, copy while others write, restore, exclusive access."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import apsw

from everthread.adapters.sqlite.connection import Connection, SqliteDatabase, connect_bare, open_bare
from everthread.adapters.sqlite.migrate import check_application, known_migrations
from everthread.adapters.sqlite.sentinel import check_not_lost, index_damage_in, read_sentinel, without_index_damage
from everthread.domain.api_key import hash_token
from everthread.domain.errors import StoreBusy, StoreCorrupt, StoreError, StoreTooNew, StoreUnwritable
from everthread.store.unit_of_work import RowCounts, StoreCheck, UnitOfWork

_STEPS = 10_000
_OLDEST = (3, 51, 3)
INDEX_SAMPLES = 100


def examine(path: Path, bound_s: float) -> StoreCheck:
    """Check the file within a time limit, without changing it. Raise `StoreError` if it can't be read at all."""
    version = apsw.sqlitelibversion()
    too_old = tuple(map(int, version.split("."))) < _OLDEST
    problem = "it can damage a file that several connections use" if too_old else ""
    known = known_migrations()[-1].number
    engine = f"SQLite {version}"
    sentinel = read_sentinel(path)
    check_not_lost(path, sentinel)
    if not path.exists():
        return StoreCheck(engine, problem, 0, known, "", True)
    try:
        with open_bare(path) as connection:
            check_application(connection, str(path))
            ((schema,),) = connection.execute("SELECT COALESCE(MAX(number), 0) FROM migrations")
            damage, index_damage, whole = _find_damage(connection, bound_s)
            if sentinel is not None and not whole:
                # What a process has found counts, unless the whole file was checked since.
                damage = damage or sentinel.damage
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    return StoreCheck(engine, problem, schema, known, damage, whole, index_damage)


def _find_damage(connection: Any, bound_s: float) -> tuple[str, str, bool]:
    """Return the first problem of the file, that of the search index, and whether the check was complete."""
    deadline = time.monotonic() + bound_s
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        # A few lookups first: SQLite's check takes an index that was overwritten with zeros for an empty one.
        index_damage = _find_index_damage(connection)
        problems = list(_run_check(connection))
        return next(without_index_damage(problems), ""), next(index_damage_in(problems), index_damage), True
    except apsw.InterruptError:
        return "", "", False
    finally:
        connection.set_progress_handler(None)


def _run_check(connection: Connection) -> Iterator[tuple[str]]:
    """Yield the rows of SQLite's check. Damage that it can't get past is the last one."""
    try:
        yield from connection.execute("PRAGMA quick_check(2)")
    except apsw.CorruptError as error:
        yield (str(error),)


def _find_index_damage(connection: Connection) -> str:
    try:
        return UnitOfWork(SqliteDatabase(connection)).search.find_damage(INDEX_SAMPLES)
    except apsw.CorruptError as error:
        return str(error)


PAGES_PER_STEP = 256
LOCK_S_MAX = 0.5
_NUMBERS_SINCE = 1_700_000_000


def copy_file(path: str, target: Path, progress: Callable[[int, int], None]) -> None:
    """Copy everything committed so far to one new file that only the user may read."""
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StoreUnwritable(f"{target}: {error.strerror or error}. Choose another path.") from error
    with open_bare(path) as source, contextlib.closing(connect_bare(str(target))) as copy:
        _copy_pages(source, copy, progress)
        # A copy is one file, without a write-ahead log.
        copy.execute("PRAGMA journal_mode = DELETE")
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _copy_pages(source: Any, copy: Any, progress: Callable[[int, int], None]) -> None:
    # One snapshot for all pages: otherwise every commit of another connection would restart the copy. Writers do
    # not wait for readers.
    source.execute("BEGIN")
    list(source.execute("SELECT COUNT(*) FROM sqlite_schema"))
    with copy.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(PAGES_PER_STEP)
            progress(copying.page_count - copying.remaining, copying.page_count)
    source.execute("ROLLBACK")


def inspect(path: Path) -> RowCounts:
    """Count the rows of a closed copy. Raise `StoreCorrupt` if it is damaged, `StoreTooNew` if a newer program wrote
    it.
    """
    with open_bare(path, flags=apsw.SQLITE_OPEN_READONLY) as connection:
        check_application(connection, str(path))
        return _count_rows(connection, str(path))


def _count_rows(connection: Any, path: str) -> RowCounts:
    problems = list(without_index_damage(connection.execute("PRAGMA integrity_check(3)")))
    problems += [f"foreign key of {row[0]}" for row in connection.execute("PRAGMA foreign_key_check")]
    if problems:
        raise StoreCorrupt(f"{path}: The file is damaged ({problems[0]}). Restore another backup.")

    def number(sql: str) -> int:
        return next(iter(connection.execute(sql)))[0] or 0

    schema, newest = number("SELECT MAX(number) FROM migrations"), known_migrations()[-1].number
    if schema > newest:
        raise StoreTooNew(
            f"{path}: Written by a newer Everthread (schema {schema}; this version knows {newest}). Upgrade Everthread."
        )
    return RowCounts(
        schema,
        sessions=number("SELECT COUNT(*) FROM sessions WHERE kind <> 'notes' AND forgotten_seq IS NULL"),
        turns=number("SELECT COUNT(*) FROM turns"),
        messages=number("SELECT COUNT(*) FROM messages"),
        notes=number("SELECT COUNT(*) FROM notes WHERE live"),
        log_entries=number("SELECT COUNT(*) FROM log"),
    )


def read_tombstones(path: Path) -> frozenset[tuple[str, str]]:
    """Return kind (session, note, owner) and id of the tombstones. Empty if the file can't be read."""
    if not path.exists():
        return frozenset()
    try:
        with open_bare(path, busy_s_max=LOCK_S_MAX) as connection:
            return frozenset(connection.execute("SELECT kind, identity FROM tombstones WHERE kind <> 'fact'"))
    except StoreError:
        return frozenset()


def renumber(path: Path, now: float) -> None:
    """Give a restored copy new replay numbers.

    Providers have seen later turns under the numbers that the copy will assign again. Each restoration takes a replay
    number of its own, from the time. The positions of cursors stay.
    """
    with open_bare(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ((last,),) = connection.execute("SELECT COALESCE(MAX(replay_last), 0) FROM cursors")
        number = max(int(now) - _NUMBERS_SINCE, last + 1, connection.pragma("user_version") + 1)
        connection.execute("UPDATE cursors SET replay = ?, replay_last = ?", (number, number))
        connection.pragma("user_version", number)
        connection.execute("COMMIT")


def drop_automatic_tokens(path: Path, token: str) -> bool:
    """Remove the automatic tokens of a restored copy, except the one with this text. Return whether there was one.

    Nobody has their text. Without any other token the copy counts as one that never had a token, so that the next start
    of a gateway creates one. A copy whose tokens were all revoked stays without.
    """
    with open_bare(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if not list(connection.execute("SELECT 1 FROM pragma_table_info('tokens') WHERE name = 'automatic'")):
            # Of an older version, which created no token automatically.
            return False
        dropped = list(
            connection.execute(
                "DELETE FROM tokens WHERE automatic AND token_hash <> ? RETURNING name", (hash_token(token),)
            )
        )
        if dropped:
            connection.execute("DELETE FROM tokens_first WHERE NOT EXISTS (SELECT 1 FROM tokens)")
        connection.execute("COMMIT")
    return bool(dropped)


@contextlib.contextmanager
def exclusive_access(path: Path) -> Generator[None]:
    """Hold exclusive access to the file. Raise `StoreBusy` if another program has it open."""
    if not path.exists():
        yield
        return
    with open_bare(path, busy_s_max=LOCK_S_MAX) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
        except (apsw.BusyError, apsw.LockedError):
            raise StoreBusy(
                f"{path}: Another program has the file open. Stop it (a chat, a gateway) and try again."
            ) from None
        except (apsw.NotADBError, apsw.CorruptError):
            # No program uses a damaged file, and a restore may be about to replace it.
            pass
        yield
