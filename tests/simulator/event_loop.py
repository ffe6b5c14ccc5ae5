"""Event loop on virtual time, and the process that each task belongs to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from types import coroutine
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

T = TypeVar("T")


class TaskOwner(Protocol):
    """A simulated process: its tasks die with it."""

    name: str
    tasks: set[asyncio.Task[Any]]

    async def pause(self) -> None: ...


class SimHandle(Struct, weakref=False, eq=False):
    """A callback of the loop, without the bookkeeping of asyncio's handles, which debug mode needs."""

    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class SimLoop(asyncio.BaseEventLoop):
    """Event loop on virtual time, in one thread and without I/O, so that the order of tasks depends only on the seed.
    It implements no more than the simulation needs, because much CPU time of a schedule is spent here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._soon: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_set = 0
        self._stopping = False
        self.set_task_factory(_owned_task)
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._time

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        handle = SimHandle(callback, args, copy_context() if context is None else context)
        self._soon.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        timer = SimHandle(callback, args, copy_context() if context is None else context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the function later in the same thread."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does, for whoever waits
                future.set_exception(error)

        self.call_soon(run)
        return future

    def set_timer(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> SimHandle:
        timer = SimHandle(callback, args, copy_context())
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        """Advance time to the next timer instead of waiting for sockets, until somebody stops the loop."""
        soon, timers = self._soon, self._timers
        while True:
            while timers and (timers[0][0] <= self._time or not soon):
                when, _, timer = heappop(timers)
                if not timer.is_cancelled:
                    if when > self._time:
                        self._time = when
                    soon.append(timer)
            if not soon:
                raise RuntimeError("the simulated world stands still: everything waits for something that never comes")
            for _ in range(len(soon)):
                handle = soon.popleft()
                if not handle.is_cancelled:
                    # An error in a callback does not stop the loop. Tasks keep their own errors.
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except (Exception, asyncio.CancelledError):  # noqa: BLE001, S110 - as asyncio does
                        pass
            if self._stopping:
                return


async def sleep(seconds: float) -> None:
    """Do what `asyncio.sleep` does, with less CPU time."""
    if seconds <= 0.0:
        await _next_round()
        return
    loop = cast(SimLoop, asyncio.get_running_loop())
    future: asyncio.Future[None] = asyncio.Future(loop=loop)
    timer = loop.set_timer(loop.time() + seconds, _wake, (future,))
    try:
        await future
    finally:
        timer.is_cancelled = True


@coroutine
def _next_round() -> Generator[None]:
    yield


def _wake(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.set_result(None)


PROCESS: ContextVar[TaskOwner | None] = ContextVar("process", default=None)


def _owned_task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    """Assign every task to the process that started it, so that it dies with the process."""
    task = asyncio.Task(coro, loop=loop, **kwargs)
    process = PROCESS.get()
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task
