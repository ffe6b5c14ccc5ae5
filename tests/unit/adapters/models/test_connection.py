"""Connections to a model endpoint: reuse, limits and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from everthread.adapters.models import connection
from everthread.adapters.models.connection import ERROR_BYTES_MAX, StreamingPool
from everthread.adapters.models.sse import StreamTooLarge
from everthread.domain.errors import ModelUnavailable
from everthread.testing.model_server.http import HttpServer, read_request, respond


class Endpoint(HttpServer):
    """Server that answers with `size` bytes and closes the first `broken` connections without an answer."""

    def __init__(self, size: int = 2, broken: int = 0) -> None:
        super().__init__()
        self.bodies: list[bytes] = []
        self._size = size
        self._broken = broken

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, request = await read_request(reader)
        if self._broken:
            self._broken -= 1
            return False
        self.bodies.append(request.body)
        return await respond(writer, 200, b"x" * self._size)


@asynccontextmanager
async def pool_of(endpoint: Endpoint, idle_s: float = 5.0) -> AsyncIterator[StreamingPool]:
    async with endpoint:
        pool = StreamingPool(f"http://127.0.0.1:{endpoint.port}", {}, 5.0, idle_s)
        try:
            yield pool
        finally:
            await pool.aclose()


async def test_a_request_is_retried_once_if_the_server_closed_the_connection() -> None:
    endpoint = Endpoint(broken=1)
    async with pool_of(endpoint) as pool:
        async with await pool.open_response("/x", (b"a", b"b" * 100_000, b"c")) as response:
            assert await pool.read_body(response) == b"xx"
    assert endpoint.bodies == [b"a" + b"b" * 100_000 + b"c"]
    async with pool_of(Endpoint(broken=2)) as pool:
        with pytest.raises(ModelUnavailable, match="it lost the connection"), pool.translate_errors(_unavailable):
            await pool.open_response("/x", (b"a",))


async def test_a_drained_connection_is_used_again() -> None:
    endpoint = Endpoint(size=100_000)
    async with pool_of(endpoint) as pool:
        for _ in range(2):
            async with await pool.open_response("/x", (b"a",)) as response:
                await pool.drain(response)
        assert endpoint.connections == 1


async def test_bodies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(Endpoint(size=ERROR_BYTES_MAX + 1)) as pool:
        async with await pool.open_response("/x", (b"a",)) as response:
            assert len(await pool.read_error_body(response)) == ERROR_BYTES_MAX
        monkeypatch.setattr(connection, "LINE_BYTES_MAX", 100)
        async with await pool.open_response("/x", (b"a",)) as response:
            with pytest.raises(StreamTooLarge, match="more than 100 bytes"):
                await pool.read_body(response)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError(), "sent nothing for 3 s"),
        (StreamTooLarge("an event of more than 9 bytes"), "sent an event of more than 9 bytes"),
        (OSError("with a header"), r"lost the connection \(OSError\)"),
    ],
)
def test_every_connection_error_is_unavailable(error: Exception, message: str) -> None:
    pool = StreamingPool("http://127.0.0.1", {}, 5.0, 3.0)
    with pytest.raises(ModelUnavailable, match=message), pool.translate_errors(_unavailable):
        raise error


def _unavailable(what: str) -> ModelUnavailable:
    return ModelUnavailable(f"it {what}")
