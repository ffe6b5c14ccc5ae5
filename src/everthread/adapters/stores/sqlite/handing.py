"""Handing work to the writer's thread, and what came of it back to the event loops that wait for it.

Back through a pipe of our own: the way that event loops bring for this costs a third more of the processor's time.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

from everthread.ports.store import UnitOfWork

_RINGS_HEARD_AT_ONCE = 4096


class Job(Struct, eq=False):
    work: Callable[[UnitOfWork], Any]
    done: asyncio.Future[Any]
    desk: Desk
    result: Any = None
    error: BaseException | None = None


class Desk:
    """Where one event loop gets its finished jobs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._finished: deque[Job] = deque()
        self._bell, self._cord = os.pipe()
        os.set_blocking(self._cord, False)
        loop.add_reader(self._bell, self._hear)

    def put(self, job: Job) -> None:
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
            if job.done.cancelled():
                continue
            if job.error is not None:
                job.done.set_exception(job.error)
            else:
                job.done.set_result(job.result)


class Jobs:
    """What waits for the writer."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Job | None] = SimpleQueue()
        self._desks: dict[asyncio.AbstractEventLoop, Desk] = {}

    def hand_in(self, work: Callable[[UnitOfWork], Any]) -> asyncio.Future[Any]:
        """From an event loop, which is told there what comes of it."""
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None:
            desk = self._desks[loop] = Desk(loop)
        done = loop.create_future()
        self._waiting.put(Job(work, done, desk))
        return done

    def take(self, most: int) -> list[Job]:
        """From the writer: what has come in meanwhile. Waits until there is something; nothing if no more will come."""
        jobs: list[Job] = []
        while (job := self._waiting.get()) is not None:
            jobs.append(job)
            if len(jobs) == most or self._waiting.empty():
                return jobs
        if jobs:
            # To be found once more, when these are done.
            self._waiting.put(None)
        return jobs

    @staticmethod
    def finished(jobs: list[Job]) -> None:
        """From the writer: tell those who wait for these, each loop once."""
        for job in jobs:
            job.desk.put(job)
        for desk in {job.desk for job in jobs}:
            desk.ring()

    def end(self) -> None:
        """No more will be handed in; the writer is done once it has seen to what was."""
        self._waiting.put(None)

    def close(self) -> None:
        """To be called once the writer is done."""
        for desk in self._desks.values():
            desk.close()
