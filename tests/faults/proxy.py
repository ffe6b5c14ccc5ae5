"""A TCP proxy between a gateway and its platform that can be cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

CHUNK = 65536


class CutProxy:
    """Forward to a local port. While it is cut, connections are refused and data in transit is held. That data arrives
    afterwards, if its sender still waits.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def cut(self, seconds: float) -> None:
        """Cut the connection. Return once it is restored."""
        self._whole.clear()
        self._close()
        await asyncio.sleep(seconds)
        await self._listen()
        self._whole.set()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _connected(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):
            far, to_far = await asyncio.open_connection("127.0.0.1", self._to)
            try:
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._pass_on(near, to_far))
                    ways.create_task(self._pass_on(far, to_near))
            finally:
                to_far.close()
        to_near.close()

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                await self._whole.wait()
                sink.write(chunk)
                await sink.drain()
        await self._whole.wait()
        sink.close()
