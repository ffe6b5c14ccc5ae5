"""The embedded store: one SQLite file, one writer thread, group commit.

Units of work that are queued at the same time share one `BEGIN IMMEDIATE` and one fsync. Each has its own savepoint,
so that one that fails affects no other. A caller gets its result after the commit is durable.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw

from everthread.adapters.sqlite.connection import BUSY_S_MAX, SqliteDatabase, connect, connect_bare
from everthread.adapters.sqlite.maintenance import copy_file
from everthread.adapters.sqlite.migrate import check_application, migrate
from everthread.adapters.sqlite.sentinel import (
    DamageGuard,
    check_and_update_sentinel,
    check_not_lost,
    damage_text,
    find_damage,
    read_sentinel,
    record_size,
    with_restore_hint,
)
from everthread.adapters.sqlite.write_queue import WriteQueue
from everthread.adapters.sqlite.writer import INDEX_PAUSE_S, Writer
from everthread.domain.errors import StoreError, StoreUnwritable
from everthread.store.deferred_erasure import ErasureDue, FoundWords
from everthread.store.search_index import SearchIndexDamaged
from everthread.store.unit_of_work import UnitOfWork

T = TypeVar("T")
BATCH_MAX = 256
_READERS = 2


class SqliteStore:
    """A `Store` on a file. Open it with `await SqliteStore.open(path)`."""

    def __init__(self, path: Path, *, busy_s_max: float = BUSY_S_MAX, damage: str = "") -> None:
        """Open a prepared file. Nothing is written to one with `damage`; its intact parts can be read."""
        self._path = str(path)
        self._busy_s_max = busy_s_max
        self._queue = WriteQueue()
        self._guard = DamageGuard(path, damage, on_index_damage=self._queue.wake)
        self._writer = Writer(self._path, busy_s_max=busy_s_max, guard=self._guard)
        self._inline = self._connected()
        self._inline_unit = UnitOfWork(self._inline)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._local = threading.local()
        self._opened: list[SqliteDatabase] = []
        self._thread = threading.Thread(target=self._run_writer, name="store-writer", daemon=True)
        self._thread.start()
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, busy_s_max: float = BUSY_S_MAX) -> SqliteStore:
        """Open or create the file, migrate its schema, and start the writer."""
        damage = await asyncio.to_thread(prepare, path, busy_s_max=busy_s_max)
        return cls(path, busy_s_max=busy_s_max, damage=damage)

    @property
    def damage(self) -> str:
        return self._guard.problem

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        self._check_open()
        # Cancelling the caller does not undo a commit that has begun; only its result is lost.
        try:
            return await self._queue.submit(work)
        except ErasureDue as due:
            return await self._write_after_search(due, work)

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        self._check_open()
        try:
            return await self._queue.run_or_submit(work, self._writer.commit_inline)
        except ErasureDue as due:
            return await self._write_after_search(due, work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        self._check_open()
        return self._snapshot(self._inline, self._inline_unit, work)

    async def index(self) -> None:
        if self._guard.is_rebuild_due or not await self.read_inline(lambda uow: uow.search.is_indexed()):
            while await self.write(self._writer.index_batch):  # noqa: ASYNC110 - the pause lets other processes write
                await asyncio.sleep(INDEX_PAUSE_S)  # noqa: TID251 - see above

    async def changed(self) -> int:
        self._check_open()
        try:
            return self._inline.connection.pragma("data_version")
        except apsw.Error as error:
            raise self._guard.translate(error) from error

    async def tidy(self) -> bool:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._writer.empty_wal)

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        self._check_open()
        await asyncio.to_thread(copy_file, self._path, target, progress)

    async def aclose(self) -> None:
        """Finish queued writes, then close the file. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._queue.end()
        await asyncio.to_thread(self._thread.join)
        self._queue.close()
        self._readers.shutdown()
        for database in (*self._opened, self._inline):
            database.connection.close()
        self._writer.close()
        if self._writer.has_written:
            await asyncio.to_thread(record_size, Path(self._path))

    async def _write_after_search(self, due: ErasureDue, work: Callable[[UnitOfWork], T]) -> T:
        """Search large texts for forgotten words while others may write, then run the unit of work again."""
        found: FoundWords = {}
        while True:
            # With the results so far: a unit of work may have to search several texts, one after the other.
            found = {**found, **await asyncio.to_thread(due.search)}

            def repeat(uow: UnitOfWork, found: FoundWords = found) -> T:
                uow.erasure.found = found
                try:
                    return work(uow)
                finally:
                    uow.erasure.found = {}

            try:
                return await self._queue.submit(repeat)
            except ErasureDue as another:
                # The next text, or the same one because something else was forgotten meanwhile.
                due = another

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._path}: The store is closed.")

    def _connected(self) -> SqliteDatabase:
        try:
            return SqliteDatabase(connect(self._path, busy_s_max=self._busy_s_max))
        except apsw.Error as error:
            raise self._guard.translate(error) from error

    def _read(self, work: Callable[[UnitOfWork], T]) -> T:
        database: SqliteDatabase | None = getattr(self._local, "database", None)
        if database is None:
            self._local.database = database = self._connected()
            self._local.unit = UnitOfWork(database)
            self._opened.append(database)
        return self._snapshot(database, self._local.unit, work)

    def _snapshot(self, database: SqliteDatabase, unit: UnitOfWork, work: Callable[[UnitOfWork], T]) -> T:
        try:
            database.begin(write=False)
            try:
                return work(unit)
            finally:
                database.rollback()
        except apsw.Error as error:
            raise self._guard.translate(error) from error
        except SearchIndexDamaged as error:
            raise self._guard.report_index_damage() from error

    def _run_writer(self) -> None:
        # Jobs that were queued during the last commit form the next batch.
        wait_s = None
        while (jobs := self._queue.take(BATCH_MAX, wait_s)) is not None:
            if jobs:
                self._writer.commit(jobs)
                self._queue.finished(jobs)
            wait_s = self._writer.do_chores()
        # The next process that needs the index goes on with it.
        self._writer.do_chores()


def prepare(path: Path, *, busy_s_max: float = BUSY_S_MAX) -> str:
    """Create the file and its folder, readable by the user only, and migrate the schema.

    Returns the damage of a file that must not be written; empty if there is none.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = read_sentinel(path)
        check_not_lost(path, known)
        if not path.exists():
            path.touch(mode=0o600)
        with with_restore_hint(path):
            # Before `connect` changes the journal mode of another program's file.
            with closing(connect_bare(str(path), busy_s_max=busy_s_max)) as bare:
                check_application(bare, str(path))
            with closing(connect(str(path), busy_s_max=busy_s_max)) as connection:
                if known is not None and known.damage and (damage := find_damage(connection)):
                    return damage_text(path, f"The file is damaged ({damage})")
                migrate(connection, str(path))
                check_and_update_sentinel(connection, path, known)
    except OSError as error:
        raise StoreUnwritable(
            f"{path}: {error.strerror or error}. Fix its permissions or choose another home."
        ) from error
    return ""
