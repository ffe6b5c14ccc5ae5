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
from pathlib import Path

import apsw

from everthread.adapters.sqlite.connection import SqliteDatabase, connect
from everthread.adapters.sqlite.sentinel import DamageGuard
from everthread.adapters.sqlite.write_queue import Job
from everthread.domain.errors import StoreError
from everthread.store.unit_of_work import NotInline, UnitOfWork

CACHE_KIB = 8_192
"""Deliveries are read here too, once each: a larger cache would keep a long backlog in memory."""
WAL_PAGES_MAX = 1_000
"""SQLite's own default for an automatic checkpoint."""
EMPTY_WAL_S_MAX = 0.5
INDEX_PAUSE_S = 0.03
"""Between batches of an index, for writers of other processes: SQLite's lock goes to whoever asks for it next."""
REBUILD_RETRY_S = 1.0
"""Before another attempt to empty a damaged index, after another process held the write lock."""
FAST_COMMIT_S_MAX = 0.002
FAST_COMMITS_MIN = 8
"""Consecutive fast commits before the loop commits inline again: an unsteady disk would block it repeatedly."""


class Writer:
    """Commit jobs on the one connection that writes."""

    def __init__(self, path: str, *, busy_s_max: float, guard: DamageGuard | None = None) -> None:
        self._path = path
        self._guard = guard or DamageGuard(Path(path))
        self._busy_s_max = busy_s_max
        # An RLock knows its owner: an interrupt may come between acquiring it and returning from acquire().
        self._lock = threading.RLock()
        self._slow_until = 0
        self._commits = 0
        self._wal_pages = 0
        self._index_from = 0.0
        """The monotonic time at which the next batch may be indexed."""
        self._rebuild_from = 0.0
        """The monotonic time at which a damaged index may be emptied."""
        self._connect()

    def commit(self, jobs: Sequence[Job]) -> None:
        """Commit the jobs. Errors go to the jobs' callers: the writer must never die."""
        with self._lock:
            self._commit(jobs, self._busy_s_max)

    def commit_inline(self, job: Job) -> bool:
        """Commit one job on an event loop's thread. Return False if that would block the loop."""
        if self._commits < self._slow_until or self._is_due_for_chores():
            return False
        try:
            if not self._lock.acquire(blocking=False):
                return False
            self._unit.is_inline = True
            self._commit([job], 0.0)
        finally:
            with suppress(RuntimeError):
                # release() raises unless this thread has acquired the lock.
                self._unit.is_inline = False
                self._lock.release()
        if job.error and (isinstance(job.error, NotInline) or self._database.is_retryable(job.error)):
            job.error = None
            return False
        return True

    def do_chores(self) -> float | None:
        """Index some new turns and checkpoint a long write-ahead log, while no caller waits. Return the seconds until
        there is more to do; None if there is nothing.
        """
        if not self._is_due_for_chores() or self._guard.problem:
            return None
        with self._lock:
            if self._index_wait_s() == 0.0:
                self._rebuild_or_index()
            if self._wal_pages >= WAL_PAGES_MAX:
                self._checkpoint()
        return self._index_wait_s()

    def _index_wait_s(self) -> float | None:
        """Return the seconds until the index may be written; None if there is nothing to write."""
        if not (self._guard.is_rebuild_due or self._unit.turns.index_due):
            return None
        start = self._rebuild_from if self._guard.is_rebuild_due else self._index_from
        return max(start - time.monotonic(), 0.0)

    def _rebuild_or_index(self) -> None:
        if not self._guard.is_rebuild_due:
            self._index(self.index_batch)
            return
        error = self._index(_clear_index)
        if error and self._database.is_retryable(error):
            self._rebuild_from = time.monotonic() + REBUILD_RETRY_S
        else:
            self._guard.is_rebuild_due = False

    def _index(self, work: Callable[[UnitOfWork], bool]) -> BaseException | None:
        job = Job(work)
        self._commit([job], self._busy_s_max)
        # Even if that failed: the next search indexes, and reports the error.
        self._unit.turns.index_due = job.error is None and job.result
        return job.error

    def index_batch(self, uow: UnitOfWork) -> bool:
        """Index some new messages. Return whether there are more, for after a pause of `INDEX_PAUSE_S`."""
        if self._guard.is_rebuild_due:
            # The chores after this transaction empty a damaged index.
            return True
        has_more = uow.search.index_batch()
        self._index_from = time.monotonic() + INDEX_PAUSE_S
        return has_more

    def empty_wal(self) -> bool:
        """Move the write-ahead log into the file. Return False if another connection uses it for too long."""
        try:
            self._guard.check()
            # Under the lock: SQLite reports busy if a checkpoint is running.
            with self._lock:
                connection = connect(self._path, busy_s_max=min(self._busy_s_max, EMPTY_WAL_S_MAX))
                try:
                    ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    return not busy
                finally:
                    connection.close()
        except apsw.Error as error:
            raise self._guard.translate(error) from error

    @property
    def has_written(self) -> bool:
        return self._commits > 0

    def close(self) -> None:
        with self._lock:
            self._database.connection.close()

    def _connect(self) -> None:
        """Open the connection."""
        try:
            connection = connect(self._path, busy_s_max=self._busy_s_max, cache_kib=CACHE_KIB)
        except apsw.Error as error:
            raise self._guard.translate(error) from error
        # Replaces SQLite's automatic checkpoint, which runs inside a commit while a caller waits.
        connection.set_wal_hook(self._count_pages)
        self._database = SqliteDatabase(connection)
        self._unit = UnitOfWork(self._database)
        self._unit.erasure.may_defer = True

    def _count_pages(self, connection: object, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _is_due_for_chores(self) -> bool:
        return self._wal_pages >= WAL_PAGES_MAX or self._unit.turns.index_due or self._guard.is_rebuild_due

    def _checkpoint(self) -> None:
        try:
            self._database.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except apsw.Error:
            # Another process checkpoints, or the disk is full: committed rows are safe in the log.
            pass
        self._wal_pages = 0

    def _commit(self, jobs: Sequence[Job], busy_s_max: float) -> None:
        try:
            self._guard.check()
            try:
                self._database.connection.set_busy_timeout(int(busy_s_max * 1000))
                self._commit_together(jobs)
            finally:
                if self._database.connection.in_transaction:
                    self._reconnect()
        except BaseException as error:  # noqa: BLE001 - without the writer thread, every later write would wait forever
            for job in jobs:
                job.error = job.error or self._as_store_error(error)

    def _commit_together(self, jobs: Sequence[Job]) -> None:
        """Run the jobs in one transaction and set the result or error of each."""
        left = jobs
        while left:
            culprit = self._try_together(left)
            # SQLite rolled back the whole transaction because of one job: the others run again.
            left = [job for job in left if job is not culprit] if culprit else []

    def _try_together(self, jobs: Sequence[Job]) -> Job | None:
        try:
            self._database.begin(write=True)
            if len(jobs) == 1:
                return self._run_alone(jobs[0])
            for job in jobs:
                if not self._run_in_savepoint(job):
                    return job
            self._commit_durably()
        except apsw.Error as error:
            for job in jobs:
                job.error = self._guard.translate(error)
            self._database.rollback()
        return None

    def _run_alone(self, job: Job) -> None:
        """Run a single job: without others to protect, it needs no savepoint."""
        if self._run(job):
            self._commit_durably()
        else:
            self._database.rollback()

    def _run_in_savepoint(self, job: Job) -> bool:
        """Run a job in a savepoint. Return whether the transaction is still open afterwards."""
        connection = self._database.connection
        connection.execute("SAVEPOINT unit")
        if not self._run(job):
            if not connection.in_transaction:
                return False
            connection.execute("ROLLBACK TO unit")
        connection.execute("RELEASE unit")
        return True

    def _run(self, job: Job) -> bool:
        """Run a job and set its result or error. Return whether it succeeded."""
        try:
            job.result, job.error = job.work(self._unit), None
        except BaseException as error:  # noqa: BLE001 - whatever a unit of work raises is its caller's to handle
            job.error = error if _can_be_raised(error) else self._as_store_error(error)
            return False
        return True

    def _commit_durably(self) -> None:
        begun = time.monotonic()
        self._database.commit()
        self._commits += 1
        if time.monotonic() - begun > FAST_COMMIT_S_MAX:
            self._slow_until = self._commits + FAST_COMMITS_MIN

    def _reconnect(self) -> None:
        """Replace a connection whose transaction can't be rolled back."""
        left = self._database.connection
        self._connect()
        left.close()

    def _as_store_error(self, error: BaseException) -> StoreError:
        if isinstance(error, StoreError):
            return error
        is_sqlite = isinstance(error, apsw.Error)
        store_error = self._guard.translate(error) if is_sqlite else StoreError(f"{self._path}: {error!r}")
        store_error.__cause__ = error
        return store_error


def _clear_index(uow: UnitOfWork) -> bool:
    uow.search.clear()
    return True


def _can_be_raised(error: BaseException) -> bool:
    """Return whether the error may reach the caller: not SystemExit and the like, nor StopIteration, which no future
    accepts.
    """
    return isinstance(error, Exception) and not isinstance(error, apsw.Error | StopIteration)
