"""Queue transactions for the writer thread and return their results to event loops.

Results come back through a pipe: `call_soon_threadsafe` costs a third more CPU time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct

from everthread.domain.errors import StoreError
from everthread.store.unit_of_work import UnitOfWork

_SIGNAL_BYTES = 4096


class _Signal(Enum):
    """Entries of the queue that are no jobs."""

    WAKE = "wake"
    END = "end"


class Job(Struct, eq=False):
    """A unit of work with its result or its error."""

    work: Callable[[UnitOfWork], Any]
    result: Any = None
    error: BaseException | None = None


class QueuedJob(Job, eq=False, kw_only=True):
    """A job whose caller waits in an event loop."""

    done: asyncio.Future[Any]
    client: LoopClient


class LoopClient:
    """The jobs of one event loop, and the pipe that wakes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unfinished = 0
        self._deferred: list[QueuedJob] = []
        self._finished: deque[QueuedJob] = deque()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        loop.add_reader(self._read_end, self._on_signal)

    def create(self, work: Callable[[UnitOfWork], Any]) -> QueuedJob:
        """Create a job that a caller on this loop waits for."""
        self._unfinished += 1
        return QueuedJob(work, done=self._loop.create_future(), client=self)

    def defer(self, job: QueuedJob) -> None:
        """Keep a job until it is known whether others are started in the same pass of the loop."""
        self._deferred.append(job)

    def take_deferred(self) -> list[QueuedJob]:
        """Return the deferred jobs, for the caller to queue."""
        jobs, self._deferred = self._deferred, []
        return jobs

    def take_if_alone(self, job: QueuedJob) -> bool:
        """Take back a deferred job if no caller on this loop waits for anything else."""
        if self._unfinished > 1 or self._deferred != [job]:
            return False
        self._deferred.clear()
        return True

    def finish_inline(self) -> None:
        """Count a job as finished that ran on this loop."""
        self._unfinished -= 1

    def put(self, job: QueuedJob) -> None:
        """Add a finished job, on the writer thread. Call `signal` once after the last one."""
        self._finished.append(job)

    def signal(self) -> None:
        """Wake the loop."""
        try:
            os.write(self._write_end, b"\0")
        except BlockingIOError:
            # The pipe is full: the loop has enough signals to read.
            pass

    def close(self) -> None:
        """Close the pipe, from any loop, when no more jobs will be put."""
        if self._loop is asyncio.get_running_loop():
            self._close()
            return
        try:
            self._loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            # The loop is closed: it has no callers left.
            self._close_pipe()

    def _close(self) -> None:
        self._loop.remove_reader(self._read_end)
        self._close_pipe()
        self._resolve_finished()

    def _close_pipe(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def _on_signal(self) -> None:
        os.read(self._read_end, _SIGNAL_BYTES)
        self._resolve_finished()

    def _resolve_finished(self) -> None:
        while self._finished:
            job = self._finished.popleft()
            self._unfinished -= 1
            if job.done.cancelled():
                continue
            if job.error is not None:
                job.done.set_exception(job.error)
            else:
                job.done.set_result(job.result)


class WriteQueue:
    """Jobs that wait for the writer thread."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[QueuedJob | _Signal] = SimpleQueue()
        self._clients: dict[asyncio.AbstractEventLoop, LoopClient] = {}
        self._ending = threading.Lock()
        self._ended = False

    def submit(self, work: Callable[[UnitOfWork], Any]) -> asyncio.Future[Any]:
        """Queue a unit of work from an event loop and return the future of its result."""
        client = self._client()
        job = client.create(work)
        self._put(*client.take_deferred(), job)
        return job.done

    async def run_or_submit(self, work: Callable[[UnitOfWork], Any], run_inline: Callable[[Job], bool]) -> Any:
        """Run the work inline if no other write of this loop waits and `run_inline` accepts it; else queue it."""
        client = self._client()
        job = client.create(work)
        client.defer(job)
        try:
            # One pass of the loop: writes that are started in the same pass are committed together.
            await asyncio.sleep(0)  # noqa: TID251 - see above
        except asyncio.CancelledError:
            # The job runs in its turn although its caller is cancelled.
            job.done.cancel()
            with suppress(StoreError):
                self._put(*client.take_deferred())
            raise
        if not client.take_if_alone(job):
            self._put(*client.take_deferred())
        elif _runs_inline(job, run_inline):
            return _result(job)
        else:
            self._put(job)
        return await job.done

    def take(self, most: int, wait_s: float | None = None) -> list[QueuedJob] | None:
        """Wait for jobs and return them, on the writer thread. Empty after `wait_s` or `wake`, None after `end`."""
        jobs: list[QueuedJob] = []
        while (job := self._next(wait_s)) is not _Signal.END:
            if job is not _Signal.WAKE:
                jobs.append(job)
            if len(jobs) == most or self._waiting.empty():
                return jobs
        if jobs:
            # The next call must find the end, too.
            self._waiting.put(_Signal.END)
            return jobs
        return None

    def wake(self) -> None:
        """Let `take` return without a job, from any thread."""
        self._waiting.put(_Signal.WAKE)

    @staticmethod
    def finished(jobs: list[QueuedJob]) -> None:
        """Return finished jobs to their callers, on the writer thread, with one signal for each loop."""
        for job in jobs:
            job.client.put(job)
        for client in {job.client for job in jobs}:
            client.signal()

    def end(self) -> None:
        """Accept no more jobs. The writer stops after those that are queued."""
        for client in self._clients.values():
            self._put(*client.take_deferred())
        with self._ending:
            self._ended = True
            self._waiting.put(_Signal.END)

    def close(self) -> None:
        """Close the clients, after the writer has stopped."""
        for client in self._clients.values():
            client.close()

    def _next(self, wait_s: float | None) -> QueuedJob | _Signal:
        try:
            return self._waiting.get(timeout=wait_s)
        except Empty:
            return _Signal.WAKE

    def _client(self) -> LoopClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = LoopClient(loop)
        return client

    def _put(self, *jobs: QueuedJob) -> None:
        with self._ending:
            if jobs and self._ended:
                # Another event loop has closed the store meanwhile: the writer takes no more jobs.
                raise StoreError("The store is closed.")
            for job in jobs:
                self._waiting.put(job)


def _runs_inline(job: QueuedJob, run_inline: Callable[[Job], bool]) -> bool:
    """Run the job inline. If that is interrupted, the job counts as finished and is not queued."""
    done = True
    try:
        done = run_inline(job)
    finally:
        if done:
            job.client.finish_inline()
    return done


def _result(job: Job) -> Any:
    if job.error is None:
        return job.result
    cause = job.error.__cause__
    if cause is None or isinstance(cause, Exception | asyncio.CancelledError | GeneratorExit):
        raise job.error
    # KeyboardInterrupt or SystemExit was raised on the caller's own thread.
    raise cause
