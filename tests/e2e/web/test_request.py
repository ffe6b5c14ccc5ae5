"""The limits of a request: its body, and the rate of its caller."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key
from tests.runtime import until

from everthread.config.schema import GatewaySettings
from everthread.testing.model_server.replies import End, Say
from everthread.testing.model_server.server import ModelServer
from everthread.web.request import BODY_BYTES_MAX

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
        owner = fixture.runtime.settings.owner
        bodies.owner.add(owner, bodies.owner.each_max)
        full = await fixture.ask("POST", CHAT, BODY)
        assert (full.status, full.code, full.headers["Retry-After"]) == (429, "too_many_bytes", "5")
        bodies.owner.remove(owner, bodies.owner.each_max)
        assert (await fixture.ask("POST", CHAT, BODY)).status == 200


async def hold(port: int | None, head: str, count: int) -> list[asyncio.StreamWriter]:
    """Open requests with a large body whose last byte never comes."""
    held: list[asyncio.StreamWriter] = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"{head}Host: x\r\nContent-Length: {BODY_BYTES_MAX}\r\n\r\n".encode() + b"x" * (BODY_BYTES_MAX - 1)
        )
        held.append(writer)
    await asyncio.sleep(0.7)
    return held


def unsigned_delivery() -> str:
    return f"POST /hooks/x HTTP/1.1\r\nX-Signature: sha256={'0' * 64}\r\nX-Timestamp: {int(time.time())}\r\n"


async def test_a_stranger_at_the_address_of_the_owner_cannot_shut_them_out(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        held = await hold(fixture.web.port, unsigned_delivery(), 8)
        answer = await fixture.say("hello", X_Session_Key="desk")
        for writer in held:
            writer.close()
        assert answer.status == 200, answer.body


async def test_a_guest_at_the_address_of_the_owner_cannot_shut_them_out(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        head = f"POST {CHAT} HTTP/1.1\r\nAuthorization: Bearer {await fixture.token('eve')}\r\n"
        held = await hold(fixture.web.port, head, 10)
        answer = await fixture.say("hello", X_Session_Key="desk")
        for writer in held:
            writer.close()
        assert answer.status == 200, answer.body


async def test_a_stranger_cannot_shut_out_the_webhooks_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        held = await hold(fixture.web.port, unsigned_delivery(), 8)
        monkeypatch.setattr(fixture.web.state, "address_of", lambda _: "203.0.113.9")
        now = {"X_Timestamp": str(int(time.time())), "X_Signature": f"sha256={'0' * 64}"}
        answer = await fixture.ask("POST", "/hooks/x", b"x" * 1000, token="", **now)
        for writer in held:
            writer.close()
        assert answer.status == 401, answer.body


async def test_a_message_that_waits_for_its_turn_holds_no_body(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("a b", chunks=2, end=End.STALL)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        waiting = asyncio.ensure_future(fixture.say("x" * 100_000, X_Session_Key="desk"))
        await until(lambda: bool(model.received))
        try:
            assert fixture.web.state.bodies.is_empty
        finally:
            waiting.cancel()


async def test_a_guest_cannot_write_without_limit_through_stop(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        token = await fixture.token("eve")
        sessions = [await fixture.converse("hello", token=token, name=name) for name in ("x", "y")]
        count = "SELECT (SELECT COUNT(*) FROM inbox), (SELECT COUNT(*) FROM boundaries)"
        before = await fixture.runtime.store.read(lambda uow: uow.inbox._first(count, ()))  # noqa: SLF001
        statuses: list[int] = []
        for number in range(25):
            where = {"X_Session_Key": f"z{number}", "X_Session_Id": sessions[number % 2]}
            for text in ("/stop", "/deny") if number < 10 else ("/stop",):
                statuses.append((await fixture.say(text, token, **where)).status)
        assert statuses[:20] == [200] * 20
        assert 429 in statuses[20:]
        assert await fixture.runtime.store.read(lambda uow: uow.inbox._first(count, ())) == before  # noqa: SLF001
        assert (await fixture.say("/stop", X_Session_Key="desk")).text == "Nothing is running here."


async def test_a_token_that_is_revoked_while_its_body_arrives_is_refused(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token, body = await fixture.token("eve"), msgspec.json.encode(BODY)
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nX-Session-Key: a\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
        await until(lambda: not fixture.web.state.bodies.is_empty)
        await fixture.runtime.store.write(lambda uow: uow.api_keys.remove("eve", "test"))
        writer.write(body[-1:])
        assert (await gone(reader)).startswith(b"HTTP/1.1 401")
        writer.close()
        assert not model.received


@pytest.mark.parametrize("where", [{}, {"X-Session-Key": "desk"}])
async def test_a_token_that_is_revoked_reads_no_more_of_a_running_stream(tmp_path: Path, where: dict[str, str]) -> None:
    slow = Say("word " * 40, chunks=40, delay_s=0.1)
    async with ModelServer(lambda _: slow) as model, http_gateway(tmp_path, model) as fixture:
        headers = {"Authorization": f"Bearer {await fixture.token('eve')}"} | where
        async with fixture.http.post(fixture.url + CHAT, json=BODY | {"stream": True}, headers=headers) as stream:
            await stream.content.readuntil(b"word")
            await fixture.runtime.store.write(lambda uow: uow.api_keys.remove("eve", "test"))
            rest = await stream.content.read()
        assert rest.count(b"word") < 20
        assert b"[DONE]" not in rest
