"""Connections to a memory service: limits and errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from everthread.adapters.memory.common import connection
from everthread.adapters.memory.common.connection import ConnectionPool
from everthread.domain.errors import Unavailable


@asynccontextmanager
async def pool_of(
    handler: Callable[[web.Request], Awaitable[web.Response]], request_s: float = 5.0
) -> AsyncIterator[ConnectionPool]:
    app = web.Application()
    app.router.add_route("*", "/x", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    pool = ConnectionPool("diary", url, {"Authorization": "Bearer key-1"}, 5.0, request_s)
    try:
        yield pool
    finally:
        await pool.aclose()
        await runner.cleanup()


async def test_a_response_has_its_status_and_retry_delay() -> None:
    async def handle(request: web.Request) -> web.Response:
        assert (request.headers["Authorization"], request.query["page"]) == ("Bearer key-1", "2")
        return web.Response(status=429, body=await request.read(), headers={"Retry-After": "7"})

    async with pool_of(handle) as pool:
        response = await pool.request("POST", "/x", b"hello", {"page": 2}, {})
        assert (response.status, response.retry_after, response.body) == (429, "7", b"hello")


async def test_a_redirect_is_not_followed() -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://elsewhere.example/"})

    async with pool_of(handle) as pool:
        assert (await pool.request("GET", "/x", None, {}, {})).status == 302


async def test_a_response_that_is_too_large_or_too_slow_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 101)

    async def slow(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(connection, "RESPONSE_BYTES_MAX", 100)
    async with pool_of(large) as pool:
        with pytest.raises(Unavailable, match="larger than 100 bytes"):
            await pool.request("GET", "/x", None, {}, {})
    async with pool_of(slow, request_s=0.05) as pool:
        with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
            await pool.request("GET", "/x", None, {}, {})


async def test_a_server_that_is_not_running_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        pool = ConnectionPool("diary", f"http://127.0.0.1:{unused.getsockname()[1]}", {}, 1.0, 1.0)
        with pytest.raises(Unavailable, match="can't be reached"):
            await pool.request("GET", "/x", None, {}, {})
        await pool.aclose()
        await pool.aclose()
