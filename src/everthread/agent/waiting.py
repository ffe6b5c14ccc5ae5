"""Waiting for what must not be left half done, and letting go of what may fail unheard."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

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
