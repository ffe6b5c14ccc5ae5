"""The one connection that writes, and commits on it.

Whoever holds the pen writes: the writer's thread, which takes all that was handed in together, or an event loop that
has one short thing to write. To go to another thread and back costs as much as such a commit, so a loop does it itself
as long as it has to wait for nobody and the disk is quick; how long the last commit took says that best.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import apsw

from everthread.adapters.stores.sqlite.connection import Connection, connect, translated
from everthread.adapters.stores.sqlite.handing import Job
from everthread.adapters.stores.tables.unit import Tables
from everthread.domain.errors import StoreBusy, StoreError
from everthread.ports.store import UnitOfWork

CACHE_KIB = 8_192
"""What is delivered is read here too, once: with more room, a long backlog would stay in memory."""
LOG_PAGES_MAX = 1_000
"""What SQLite itself takes for a long log."""
QUICK_S_MAX = 0.002


class Writer:
    def __init__(self, path: str, *, busy_s_max: float) -> None:
        self._path = path
        self._busy_s_max = busy_s_max
        self._pen = threading.Lock()
        self._quick = True
        self._log_pages = 0
        self._connect()

    def commit(self, jobs: Sequence[Job]) -> None:
        """Commit the jobs. Whatever goes wrong is said to those who wait for them: the writer must never die."""
        with self._pen:
            self._commit(jobs, self._busy_s_max)

    def commit_at_once(self, job: Job) -> bool:
        """The same for one job that takes next to no time, unless it would have to wait; false if it would."""
        if not self._quick or self._is_due_for_chores() or not self._pen.acquire(blocking=False):
            return False
        try:
            self._commit([job], 0.0)
        finally:
            self._pen.release()
        if isinstance(job.error, StoreBusy):
            job.error = None
            return False
        return True

    def do_chores(self) -> None:
        """What nobody need wait for: index the words of new turns, and move a long log into the file."""
        if not self._is_due_for_chores():
            return
        with self._pen:
            if self._unit.turns.is_behind:
                # Should that fail, it is done by the next search, which then says so.
                self._commit([Job(_index)], self._busy_s_max)
                self._unit.turns.is_behind = False
            if self._log_pages >= LOG_PAGES_MAX:
                self._shorten_the_log()

    def close(self) -> None:
        self._connection.close()

    def _connect(self) -> None:
        try:
            self._connection = connect(self._path, busy_s_max=self._busy_s_max, cache_kib=CACHE_KIB)
        except apsw.Error as error:
            raise translated(error, self._path) from error
        # In place of SQLite's own, which moves the log within a commit, while somebody waits for it.
        self._connection.set_wal_hook(self._count_pages)
        self._unit = Tables(self._connection.cursor().execute)

    def _count_pages(self, connection: object, database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _is_due_for_chores(self) -> bool:
        return self._log_pages >= LOG_PAGES_MAX or self._unit.turns.is_behind

    def _shorten_the_log(self) -> None:
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except apsw.Error:
            # Somebody else does it just now, or the disk is full: what was committed is safe where it is.
            pass
        self._log_pages = 0

    def _commit(self, jobs: Sequence[Job], busy_s_max: float) -> None:
        begun = time.monotonic()
        try:
            try:
                self._connection.set_busy_timeout(int(busy_s_max * 1000))
                commit_together(self._connection, self._unit, jobs, self._path)
            finally:
                if self._connection.in_transaction:
                    self._reconnect()
        except BaseException as error:  # noqa: BLE001 - without the writer, every later write would wait for ever
            for job in jobs:
                job.error = job.error or _in_our_words(error, self._path)
        self._quick = time.monotonic() - begun < QUICK_S_MAX

    def _reconnect(self) -> None:
        """A transaction that can't be rolled back ends with its connection."""
        left = self._connection
        self._connect()
        left.close()


def _index(uow: UnitOfWork) -> None:
    uow.turns.index()


def commit_together(connection: Connection, unit: UnitOfWork, jobs: Sequence[Job], path: str) -> None:
    """Run the jobs in one transaction and leave each its result or its error."""
    waiting = jobs
    while waiting:
        culprit = _try_together(connection, unit, waiting, path)
        # SQLite gave up the whole transaction because of one job: the others have lost nothing but time.
        waiting = [job for job in waiting if job is not culprit] if culprit else []


def _try_together(connection: Connection, unit: UnitOfWork, jobs: Sequence[Job], path: str) -> Job | None:
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
