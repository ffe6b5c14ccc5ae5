"""The embedded store: one SQLite file, one writer thread, group commit.

Units of work that are handed in together share one `BEGIN IMMEDIATE` and one fsync, each inside a savepoint of its
own, so that one that fails takes nothing else with it. Every commit is durable before anyone is told of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from everthread.adapters.stores.sqlite.connection import (
    BUSY_S_MAX,
    CACHE_KIB,
    Connection,
    connect,
    connect_bare,
    translated,
)
from everthread.adapters.stores.sqlite.files import copy_file
from everthread.adapters.stores.sqlite.handing import Job, Jobs
from everthread.adapters.stores.sqlite.migrate import migrate, refuse_others
from everthread.adapters.stores.tables.unit import Tables
from everthread.domain.errors import StoreError, StoreUnwritable
from everthread.ports.store import UnitOfWork

T = TypeVar("T")
BATCH_MAX = 256
TIDY_S_MAX = 0.5
WRITER_CACHE_KIB = 8_192
"""What is delivered is read here too, once: with more room, a long backlog would stay in memory."""
_READERS = 2


class SqliteStore:
    """A `Store` on a file. Open it with `await SqliteStore.open(path)`."""

    def __init__(self, path: Path, *, busy_s_max: float = BUSY_S_MAX) -> None:
        self._path = str(path)
        self._busy_s_max = busy_s_max
        self._writer = self._connected(WRITER_CACHE_KIB)
        self._unit = Tables(self._writer.cursor().execute)
        self._here = self._connected()
        self._tables_here = Tables(self._here.cursor().execute)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._local = threading.local()
        self._opened: list[Connection] = []
        self._jobs = Jobs()
        self._thread = threading.Thread(target=self._write_batches, name="store-writer", daemon=True)
        self._thread.start()
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, busy_s_max: float = BUSY_S_MAX) -> SqliteStore:
        """Open or create the file, bring its schema up to date, and start the writer."""
        await asyncio.to_thread(prepare, path, busy_s_max=busy_s_max)
        return cls(path, busy_s_max=busy_s_max)

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        # A commit that has begun is not undone by whoever stops waiting for it: only the news of it is lost.
        return await self._jobs.hand_in(work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def peek(self, work: Callable[[UnitOfWork], T]) -> T:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        return self._snapshot(self._here, self._tables_here, work)

    async def index(self) -> None:
        if not await self.peek(lambda uow: uow.turns.is_indexed()):
            await self.write(lambda uow: uow.turns.index())

    async def changed(self) -> int:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        try:
            return self._here.pragma("data_version")
        except apsw.Error as error:
            raise translated(error, self._path) from error

    async def tidy(self) -> bool:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._empty_the_log)

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        if self._closed:
            raise StoreError(f"{self._path}: the store is closed")
        await asyncio.to_thread(copy_file, self._path, target, progress)

    async def aclose(self) -> None:
        """Finish what was handed in, then close the file. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._jobs.end()
        await asyncio.to_thread(self._thread.join)
        self._jobs.close()
        self._readers.shutdown()
        for connection in (*self._opened, self._here, self._writer):
            connection.close()

    def _connected(self, cache_kib: int = CACHE_KIB) -> Connection:
        try:
            return connect(self._path, busy_s_max=self._busy_s_max, cache_kib=cache_kib)
        except apsw.Error as error:
            raise translated(error, self._path) from error

    def _empty_the_log(self) -> bool:
        """Move the write-ahead log into the file, unless others need the log for longer than a moment."""
        try:
            connection = connect(self._path, busy_s_max=min(self._busy_s_max, TIDY_S_MAX))
            try:
                ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return not busy
            finally:
                connection.close()
        except apsw.Error as error:
            raise translated(error, self._path) from error

    def _read(self, work: Callable[[UnitOfWork], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            self._local.connection = connection = self._connected()
            self._local.tables = Tables(connection.cursor().execute)
            self._opened.append(connection)
        return self._snapshot(connection, self._local.tables, work)

    def _snapshot(self, connection: Connection, tables: Tables, work: Callable[[UnitOfWork], T]) -> T:
        try:
            connection.execute("BEGIN")
            try:
                return work(tables)
            finally:
                connection.execute("ROLLBACK")
        except apsw.Error as error:
            raise translated(error, self._path) from error

    def _write_batches(self) -> None:
        # Whatever has come while the last batch was being made durable goes together.
        while jobs := self._jobs.take(BATCH_MAX):
            self._commit(jobs)
            self._jobs.finished(jobs)

    def _commit(self, jobs: list[Job]) -> None:
        """Commit the jobs. Whatever goes wrong is said to those who wait for them: the writer must never die."""
        try:
            try:
                commit_together(self._writer, self._unit, jobs, self._path)
            finally:
                if self._writer.in_transaction:
                    self._reconnect()
        except BaseException as error:  # noqa: BLE001 - without this thread, every later write would wait for ever
            for job in jobs:
                job.error = job.error or _in_our_words(error, self._path)

    def _reconnect(self) -> None:
        """A transaction that can't be rolled back ends with its connection."""
        left, self._writer = self._writer, self._connected(WRITER_CACHE_KIB)
        self._unit = Tables(self._writer.cursor().execute)
        left.close()


def prepare(path: Path, *, busy_s_max: float = BUSY_S_MAX) -> None:
    """Create the file and its folder for the owner's eyes only, and bring the schema up to date."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            path.touch(mode=0o600)
        _look_before_touching(path, busy_s_max)
        connection = connect(str(path), busy_s_max=busy_s_max)
    except OSError as error:
        raise StoreUnwritable(
            f"{path}: {error.strerror or error}; choose another home or mend its permissions"
        ) from error
    except apsw.Error as error:
        raise translated(error, str(path)) from error
    try:
        migrate(connection, str(path))
    except apsw.Error as error:
        raise translated(error, str(path)) from error
    finally:
        connection.close()


def _look_before_touching(path: Path, busy_s_max: float) -> None:
    """Opening a file our way changes its journal mode: another program's must be left as it is."""
    connection = connect_bare(str(path), busy_s_max=busy_s_max)
    try:
        refuse_others(connection, str(path))
    finally:
        connection.close()


def commit_together(connection: Connection, unit: UnitOfWork, jobs: list[Job], path: str) -> None:
    """Run the jobs in one transaction and leave each its result or its error."""
    waiting = jobs
    while waiting:
        culprit = _try_together(connection, unit, waiting, path)
        # SQLite gave up the whole transaction because of one job: the others have lost nothing but time.
        waiting = [job for job in waiting if job is not culprit] if culprit else []


def _try_together(connection: Connection, unit: UnitOfWork, jobs: list[Job], path: str) -> Job | None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        if len(jobs) == 1:
            return _run_alone(connection, unit, jobs[0], path)
        for job in jobs:
            if not _run_in_savepoint(connection, unit, job, path):
                return job
        connection.execute("COMMIT")
    except apsw.Error as error:
        for job in jobs:
            job.error = translated(error, path)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return None


def _run_alone(connection: Connection, unit: UnitOfWork, job: Job, path: str) -> None:
    """With nobody to be kept from harm, the transaction itself is the savepoint."""
    try:
        job.result, job.error = job.work(unit), None
    except BaseException as error:  # noqa: BLE001 - whatever a unit of work raises is its caller's to handle
        job.error = error if _can_be_handed_on(error) else _in_our_words(error, path)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return
    connection.execute("COMMIT")


def _run_in_savepoint(connection: Connection, unit: UnitOfWork, job: Job, path: str) -> bool:
    """Whether the transaction is still there afterwards."""
    connection.execute("SAVEPOINT unit")
    try:
        job.result, job.error = job.work(unit), None
    except BaseException as error:  # noqa: BLE001 - whatever a unit of work raises is its caller's to handle
        job.error = error if _can_be_handed_on(error) else _in_our_words(error, path)
        if not connection.in_transaction:
            return False
        connection.execute("ROLLBACK TO unit")
    connection.execute("RELEASE unit")
    return True


def _can_be_handed_on(error: BaseException) -> bool:
    """What is meant to end a program or a thread must not reach an event loop; no future takes a StopIteration."""
    return isinstance(error, Exception) and not isinstance(error, apsw.Error | StopIteration)


def _in_our_words(error: BaseException, path: str) -> StoreError:
    said = translated(error, path) if isinstance(error, apsw.Error) else StoreError(f"{path}: {error!r}")
    said.__cause__ = error
    return said
