"""Running somebody else's plain function so that it can hold nothing up, not even the end of the process.

Waiting for what must not be left half done, and letting go of what may fail unheard.

Long work on the event loop in slices, with room between two for whoever else waits.

Threads would not do: they share the interpreter, and each of several that are busy makes the loop wait for its share.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from everthread.domain.model import Turn


def in_daemon_thread(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Call it in a daemon thread of its own: in a shared pool, one that never returns would starve the others."""
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
        # Nobody is left to be told once the loop is closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def as_exception(error: BaseException) -> Exception:
    """What may be raised in an event loop: an exit would end it, and a cancellation be taken for that of the waiter."""
    # A future refuses this one.
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(repr(error))
    wrapped.__cause__ = error
    return wrapped


T = TypeVar("T")


async def until_done(task: asyncio.Future[T]) -> asyncio.CancelledError | None:
    """Wait for the task's end, however often somebody wants to stop waiting; that, if they did."""
    stopped: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            stopped = error
    return stopped


def unheard(task: asyncio.Task[Any]) -> None:
    """As a callback: nobody may be left to hear how the task ends. asyncio would report that to the terminal."""
    if not task.cancelled():
        task.exception()


MESSAGES_MAX = 100
CHARS_MAX = 200_000
"""Of a slice: about a millisecond, by whichever of the two is reached first."""


async def in_slices(work: Callable[[Turn], T], turns: Sequence[Turn]) -> list[T]:
    """What comes of each turn, in their order. Nobody is waited for where there is little."""
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
