"""Running somebody else's plain function so that it can hold nothing up, not even the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any


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
