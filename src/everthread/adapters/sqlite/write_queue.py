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
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from everthread.domain.errors import StoreError
from everthread.store.unit_of_work import UnitOfWork

_RINGS_HEARD_AT_ONCE = 4096


class Job(Struct, eq=False):
    work: Callable[[UnitOfWork], Any]
    result: Any = None
    error: BaseException | None = None


class HandedIn(Job, eq=False, kw_only=True):
    done: asyncio.Future[Any]
    desk: Desk


class Desk:
    """Where one event loop gets its finished jobs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unfinished = 0
        self._held_back: list[HandedIn] = []
        self._finished: deque[HandedIn] = deque()
        self._bell, self._cord = os.pipe()
        os.set_blocking(self._cord, False)
        loop.add_reader(self._bell, self._hear)

    def expect(self, work: Callable[[UnitOfWork], Any]) -> HandedIn:
        """A job that somebody here waits for from now on."""
        self._unfinished += 1
        return HandedIn(work, done=self._loop.create_future(), desk=self)

    def hold_back(self, job: HandedIn) -> None:
        """Keep a job until it is known whether others come with it."""
        self._held_back.append(job)

    def held_back(self) -> list[HandedIn]:
        """What was held back until now. Whoever asks sees to it."""
        jobs, self._held_back = self._held_back, []
        return jobs

    def took_alone(self, job: HandedIn) -> bool:
        """Take back a job that was held back, if nobody here waits for anything else."""
        if self._unfinished > 1 or self._held_back != [job]:
            return False
        self._held_back.clear()
        return True

    def let_go(self) -> None:
        """A job was done here, and nobody need be told."""
        self._unfinished -= 1

    def put(self, job: HandedIn) -> None:
        """From the writer. To be followed by `ring`, once for all that are put."""
        self._finished.append(job)

    def ring(self) -> None:
        try:
            os.write(self._cord, b"\0")
        except BlockingIOError:
            # There is no room in the pipe: it was rung often enough.
            pass

    def close(self) -> None:
        """From any loop, when nothing more will be put."""
        if self._loop is asyncio.get_running_loop():
            self._close()
            return
        try:
            self._loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            # The loop is closed: nobody is left there to be told.
            self._unhang()

    def _close(self) -> None:
        self._loop.remove_reader(self._bell)
        self._unhang()
        self._hand_out()

    def _unhang(self) -> None:
        os.close(self._bell)
        os.close(self._cord)

    def _hear(self) -> None:
        os.read(self._bell, _RINGS_HEARD_AT_ONCE)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._finished:
            job = self._finished.popleft()
            self._unfinished -= 1
            if job.done.cancelled():
                continue
            if job.error is not None:
                job.done.set_exception(job.error)
            else:
                job.done.set_result(job.result)


class Jobs:
    """What waits for the writer."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[HandedIn | None] = SimpleQueue()
        self._desks: dict[asyncio.AbstractEventLoop, Desk] = {}
        self._ending = threading.Lock()
        self._ended = False

    def hand_in(self, work: Callable[[UnitOfWork], Any]) -> asyncio.Future[Any]:
        """From an event loop, which is told there what comes of it."""
        desk = self._desk()
        job = desk.expect(work)
        self._put(*desk.held_back(), job)
        return job.done

    async def do_or_hand_in(self, work: Callable[[UnitOfWork], Any], do: Callable[[Job], bool]) -> Any:
        """Have `do` do the work here, if nobody else here has anything to write and it can; else hand it in."""
        desk = self._desk()
        job = desk.expect(work)
        desk.hold_back(job)
        try:
            # No time passes, but whoever else is about to write comes to say so: what comes together goes together.
            await asyncio.sleep(0)  # noqa: TID251 - see above
        except asyncio.CancelledError:
            # Nobody waits for it any more. It is done all the same, in its turn.
            job.done.cancel()
            with suppress(StoreError):
                self._put(*desk.held_back())
            raise
        if not desk.took_alone(job):
            self._put(*desk.held_back())
        elif _is_done_here(job, do):
            return _outcome(job)
        else:
            self._put(job)
        return await job.done

    def take(self, most: int) -> list[HandedIn]:
        """From the writer: what has come in meanwhile. Waits until there is something; nothing if no more will come."""
        jobs: list[HandedIn] = []
        while (job := self._waiting.get()) is not None:
            jobs.append(job)
            if len(jobs) == most or self._waiting.empty():
                return jobs
        if jobs:
            # To be found once more, when these are done.
            self._waiting.put(None)
        return jobs

    @staticmethod
    def finished(jobs: list[HandedIn]) -> None:
        """From the writer: tell those who wait for these, each loop once."""
        for job in jobs:
            job.desk.put(job)
        for desk in {job.desk for job in jobs}:
            desk.ring()

    def end(self) -> None:
        """No more will be handed in; the writer is done once it has seen to what was."""
        for desk in self._desks.values():
            self._put(*desk.held_back())
        with self._ending:
            self._ended = True
            self._waiting.put(None)

    def close(self) -> None:
        """To be called once the writer is done."""
        for desk in self._desks.values():
            desk.close()

    def _desk(self) -> Desk:
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._desks[loop] = Desk(loop)
        return desk

    def _put(self, *jobs: HandedIn) -> None:
        with self._ending:
            if jobs and self._ended:
                # By another event loop, in this very moment: nobody is there any more to see to them.
                raise StoreError("the store is closed")
            for job in jobs:
                self._waiting.put(job)


def _is_done_here(job: HandedIn, do: Callable[[Job], bool]) -> bool:
    """Whatever ends it, an interrupt too, it is not waited for any more, nor done once more."""
    done = True
    try:
        done = do(job)
    finally:
        if done:
            job.desk.let_go()
    return done


def _outcome(job: Job) -> Any:
    if job.error is None:
        return job.result
    cause = job.error.__cause__
    if cause is None or isinstance(cause, Exception | asyncio.CancelledError | GeneratorExit):
        raise job.error
    # What ends a program concerns the caller: it came here, in the caller's own thread.
    raise cause
