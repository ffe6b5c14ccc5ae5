"""Wait for a change of state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

WAIT_S_MAX = 60.0


class ChangeSignal:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiters so that they check their condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def until(self, there: Callable[[], object], timeout_s: float) -> None:
        """Wait until the condition holds or the timeout expires."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)):
                while not there():
                    await self._next.wait()
