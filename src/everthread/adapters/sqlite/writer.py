"""The connection that writes, and its commits.

A lock guards the connection. The writer thread commits queued jobs together; an event loop commits one short job
itself. A round trip to the writer thread costs as much as such a commit, so the loop does it inline as long as no lock
is awaited and the disk is fast, judged by the duration of the last commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import apsw

from everthread.adapters.sqlite.connection import Connection, SqliteDatabase, connect, translated
from everthread.adapters.sqlite.write_queue import Job
from everthread.domain.errors import StoreError
from everthread.store.unit_of_work import TakesLong, UnitOfWork

CACHE_KIB = 8_192
"""What is delivered is read here too, once: with more room, a long backlog would stay in memory."""
LOG_PAGES_MAX = 1_000
"""What SQLite itself takes for a long log."""
EMPTY_S_MAX = 0.5
QUICK_S_MAX = 0.002
QUICK_IN_A_ROW = 8
"""As many commits must have been quick: a disk that hesitates now and then would hold up the loop again and again."""


class Writer:
    def __init__(self, path: str, *, busy_s_max: float) -> None:
        self._path = path
        self._busy_s_max = busy_s_max
        # One that knows whose it is: an interrupt may come between taking it and knowing that it was taken.
        self._pen = threading.RLock()
        self._slow_until = 0
        self._commits = 0
        self._log_pages = 0
        self._connect()

    def commit(self, jobs: Sequence[Job]) -> None:
        """Commit the jobs. Errors go to the jobs' callers: the writer must never die."""
        with self._pen:
            self._commit(jobs, self._busy_s_max)

    def commit_inline(self, job: Job) -> bool:
        """Commit one job on an event loop's thread. Return False if that would block the loop."""
        if self._commits < self._slow_until or self._is_due_for_chores():
            return False
        try:
            if not self._pen.acquire(blocking=False):
                return False
            self._unit.is_inline = True
            self._commit([job], 0.0)
        finally:
            with suppress(RuntimeError):
                # It is ours from the moment in which it was taken.
                self._unit.is_inline = False
                self._pen.release()
        if job.error and (isinstance(job.error, TakesLong) or self._database.is_retryable(job.error)):
            job.error = None
            return False
        return True

    def do_chores(self) -> None:
        """Index new turns and checkpoint a long write-ahead log, while no caller waits."""
        if not self._is_due_for_chores():
            return
        with self._pen:
            if self._unit.turns.index_due:
                self._commit([Job(_index)], self._busy_s_max)
                # Even if that failed: the next search does it, and says so if it can't.
                self._unit.turns.index_due = False
            if self._log_pages >= LOG_PAGES_MAX:
                self._shorten_the_log()

    def empty_the_log(self) -> bool:
        """Move the log into the file, unless others need it for longer than a moment."""
        try:
            # Not while it is shortened here: SQLite would say at once that somebody else does so.
            with self._pen:
                connection = connect(self._path, busy_s_max=min(self._busy_s_max, EMPTY_S_MAX))
                try:
                    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    return not busy
                finally:
                    connection.close()
        except apsw.Error as error:
            raise translated(error, self._path) from error

    def close(self) -> None:
        with self._pen:
            self._database.connection.close()

    def _connect(self) -> None:
        """Open the connection."""
        try:
            connection = connect(self._path, busy_s_max=self._busy_s_max, cache_kib=CACHE_KIB)
        except apsw.Error as error:
            raise translated(error, self._path) from error
        # In place of SQLite's own, which moves the log within a commit, while somebody waits for it.
        connection.set_wal_hook(self._count_pages)
        self._database = SqliteDatabase(connection)
        self._unit = UnitOfWork(self._database)

    def _count_pages(self, connection: object, database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _is_due_for_chores(self) -> bool:
        return self._log_pages >= LOG_PAGES_MAX or self._unit.turns.index_due

    def _shorten_the_log(self) -> None:
        try:
            self._database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except apsw.Error:
            # Somebody else does it just now, or the disk is full: what was committed is safe where it is.
            pass
        self._log_pages = 0

    def _commit(self, jobs: Sequence[Job], busy_s_max: float) -> None:
        try:
            try:
                self._database.connection.set_busy_timeout(int(busy_s_max * 1000))
                commit_together(self._database, self._unit, jobs, self._path, self._make_durable)
            finally:
                if self._database.connection.in_transaction:
                    self._reconnect()
        except BaseException as error:  # noqa: BLE001 - without the writer, every later write would wait for ever
            for job in jobs:
                job.error = job.error or _in_our_words(error, self._path)

    def _make_durable(self) -> None:
        begun = time.monotonic()
        self._database.commit()
        self._commits += 1
        if time.monotonic() - begun > QUICK_S_MAX:
            self._slow_until = self._commits + QUICK_IN_A_ROW

    def _reconnect(self) -> None:
        """Replace a connection whose transaction can't be rolled back."""
        left = self._database.connection
        self._connect()
        left.close()


def _index(uow: UnitOfWork) -> None:
    uow.search.index()


def commit_together(
    database: SqliteDatabase, unit: UnitOfWork, jobs: Sequence[Job], path: str, make_durable: Callable[[], None]
) -> None:
    """Run the jobs in one transaction and set the result or error of each."""
    waiting = jobs
    while waiting:
        culprit = _try_together(database, unit, waiting, path, make_durable)
        # SQLite gave up the whole transaction because of one job: the others have lost nothing but time.
        waiting = [job for job in waiting if job is not culprit] if culprit else []


def _try_together(
    database: SqliteDatabase, unit: UnitOfWork, jobs: Sequence[Job], path: str, make_durable: Callable[[], None]
) -> Job | None:
    try:
        database.begin(write=True)
        if len(jobs) == 1:
            return _run_alone(database, unit, jobs[0], path, make_durable)
        for job in jobs:
            if not _run_in_savepoint(database.connection, unit, job, path):
                return job
        make_durable()
    except apsw.Error as error:
        for job in jobs:
            job.error = translated(error, path)
        database.rollback()
    return None


def _run_alone(
    database: SqliteDatabase, unit: UnitOfWork, job: Job, path: str, make_durable: Callable[[], None]
) -> None:
    """Run a single job: without others to protect, it needs no savepoint."""
    try:
        job.result, job.error = job.work(unit), None
    except BaseException as error:  # noqa: BLE001 - whatever a unit of work raises is its caller's to handle
        job.error = error if _can_be_handed_on(error) else _in_our_words(error, path)
        database.rollback()
        return
    make_durable()


def _run_in_savepoint(connection: Connection, unit: UnitOfWork, job: Job, path: str) -> bool:
    """Run a job in a savepoint. Return whether the transaction is still open afterwards."""
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
