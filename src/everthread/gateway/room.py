"""Room in memory for what is on its way to a file: there is so much of it, for all chats together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Room:
    """Whoever wants some waits until there is so much, behind those who came before."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free = bytes_max
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncGenerator[None]:
        """Room for so many bytes, at most all there is."""
        size = min(size, self._bytes_max)
        async with self._queue:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()
