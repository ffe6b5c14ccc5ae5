"""The limits of a request: its body, and the rate of its caller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key

from everthread.config.schema import GatewaySettings
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.body_budget import ADDRESS_BYTES_MAX, BODIES_BYTES_MAX

MODEL = lambda _: Say("Hello.")  # noqa: E731
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def gone(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_chunked_body_over_the_limit_gets_413(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {fixture.local_token}\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(100):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_the_rate_limit_is_per_owner_and_never_refuses_stop(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        for name in ("one", "two"):
            assert (await fixture.say("hello", anna, X_Session_Key=name, Idempotency_Key=name)).status == 200
        for name in ("one", "three"):
            much = await fixture.say("hello", anna, X_Session_Key=name)
            assert (much.status, much.code) == (429, "too_many")
        assert (await fixture.say("/stop", anna, X_Session_Key="one")).status == 200
        assert (await fixture.say("hello", ben, X_Session_Key="one")).status == 200
        assert len(await fixture.turns(key=http_key("one", user="anna"))) == 1


async def test_stateless_requests_count_toward_the_rate_limit(tmp_path: Path) -> None:
    async with (
        ModelServer(echo) as model,
        http_gateway(tmp_path, model, gateway=GatewaySettings(messages_per_minute=2)) as fixture,
    ):
        assert (await fixture.ask("POST", CHAT, BODY)).status == 200
        assert (await fixture.say("hello", X_Session_Key="desk")).status == 200
        for body in (BODY, BODY | {"stream": True}):
            much = await fixture.ask("POST", CHAT, body)
            assert (much.status, much.code) == (429, "too_many")
            assert much.headers["Retry-After"]
        # A request over the rate limit must not move a conversation.
        old = (await fixture.session(http_key("desk"))).id
        assert (await fixture.say("more", X_Session_Id=old, X_Session_Key="elsewhere")).status == 429
        assert await fixture.runtime.lifecycle.current(http_key("elsewhere")) is None


async def test_a_body_that_never_arrives_gets_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.web.request.BODY_S_MAX", 0.3)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {fixture.local_token}\r\n"
        writer.write(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        assert (await gone(reader)).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_setting_the_clock_neither_lifts_nor_prolongs_the_rate_limit(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as there:
        for name in ("one", "two"):
            assert (await there.say("hello", X_Session_Key=name)).status == 200
        for ahead_s in (86_400.0, -86_400.0):
            there.clock.ahead_s = ahead_s
            assert (await there.say("hello", X_Session_Key="one")).status == 429
        there.clock.advance(31.0)
        assert (await there.say("hello", X_Session_Key="one")).status == 200


async def test_a_request_holds_its_body_until_it_is_answered(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        bodies = fixture.web.state.bodies
        refused = {"messages": 7}
        for body in (BODY, BODY | {"stream": True}, refused):
            answer = await fixture.ask("POST", CHAT, body)
            assert answer.status == (400 if body is refused else 200)
            assert bodies.is_empty
        others = [str(number) for number in range(BODIES_BYTES_MAX // ADDRESS_BYTES_MAX)]
        for address in others:
            bodies.add(address, ADDRESS_BYTES_MAX, signed=True)
        full = await fixture.ask("POST", CHAT, BODY)
        assert (full.status, full.code, full.headers["Retry-After"]) == (503, "too_many_bytes", "5")
        bodies.remove(others[0], ADDRESS_BYTES_MAX, signed=True)
        assert (await fixture.ask("POST", CHAT, BODY)).status == 200
