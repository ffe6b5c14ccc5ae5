"""The routes and the dispatch of requests, over real HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.gateway import echo
from tests.http_gateway import http_gateway

from everthread.testing.model_server.server import ModelServer


async def test_head_requests_get_the_headers_only(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one")
        auth = f"Authorization: Bearer {fixture.local_token}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        paths = ("/api/events", f"/api/sessions/{old}/export", "/api/sessions", "/health")
        async with asyncio.timeout(3):
            for path in paths * 5:
                writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n{auth}\r\n".encode())
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        assert "everthread_event_listeners 0\n" in (await fixture.ask("GET", "/metrics")).body.decode()
        assert (await fixture.ask("OPTIONS", "/api/sessions")).status == 405
