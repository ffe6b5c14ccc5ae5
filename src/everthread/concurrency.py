"""Helpers for asyncio: daemon threads, uninterruptible waits, the end of tasks, and long work in slices.

`in_daemon_thread` calls a blocking function, so that it delays neither the event loop nor the exit of the process.
`wait_until_done` waits for work that must not be abandoned halfway. `finish_tasks` and `cancel_tasks` end tasks.
`in_slices` yields to other tasks between slices of CPU work. Threads would not help there: they share the interpreter
lock, and each busy thread delays the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

from everthread.domain.model import Turn


def in_daemon_thread(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Call the function in its own daemon thread. In a shared pool, a call that never returns would starve others."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001 - handed to whoever awaits the future
            error = as_exception(caught)
        # The loop may be closed by now; then no task waits for the result.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    # With the context of the caller: what the function logs belongs to the same session.
    threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True).start()
    return future


def as_exception(error: BaseException) -> Exception:
    """Return an error that is safe to raise in an event loop.

    `SystemExit` would end the loop, and `CancelledError` would look like a cancellation of the waiting task.
    """
    # A future does not accept StopIteration.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(repr(error))
    wrapped.__cause__ = error
    return wrapped


T = TypeVar("T")


async def wait_until_done(task: asyncio.Future[T]) -> asyncio.CancelledError | None:
    """Wait until the task is done, despite cancellation. Return the last cancellation, for the caller to raise."""
    stopped: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            stopped = error
    return stopped


async def cancel_tasks(tasks: Iterable[asyncio.Future[Any]], timeout_s: float | None = None) -> None:
    """Cancel the tasks in their order, and wait until they have ended, or for `timeout_s`."""
    if cancelled := list(tasks):
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled, timeout=timeout_s)


async def finish_tasks(
    running: Callable[[], Iterable[asyncio.Future[Any]]], deadline: float, cancel_s: float | None = None
) -> None:
    """Wait until nothing is `running`, or until `deadline` by the loop's clock; then cancel the rest."""
    while (tasks := list(running())) and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
        await asyncio.wait(tasks, timeout=left_s)
    await cancel_tasks(running(), cancel_s)


def ignore_exception(task: asyncio.Task[Any]) -> None:
    """Mark the task's exception as retrieved. Done callback for tasks that may have no waiter.

    asyncio would otherwise report the exception on the terminal.
    """
    if not task.cancelled():
        task.exception()


MESSAGES_MAX = 100
CHARS_MAX = 200_000
"""The limits of a slice, about a millisecond of work. The first limit that is reached ends the slice."""


async def in_slices(work: Callable[[Turn], T], turns: Sequence[Turn]) -> list[T]:
    """Apply `work` to each turn, and yield to the event loop after each full slice. Return the results in order."""
    done: list[T] = []
    messages = chars = 0
    for turn in turns:
        if messages >= MESSAGES_MAX or chars >= CHARS_MAX:
            await asyncio.sleep(0)  # noqa: TID251 - no time is to pass
            messages = chars = 0
        done.append(work(turn))
        messages += len(turn.messages)
        chars += sum(len(message.content) for message in turn.messages)
    return done
