"""Limits of HTTP connections, with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key
from tests.runtime import until

from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import connections

MODEL = lambda _: Say("Hello.")  # noqa: E731


async def gone(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


CHAT = "/v1/chat/completions"


async def test_endless_headers_get_400(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        async with asyncio.timeout(5):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                # The server may reset the connection before the client reads the response.
                answer = b"HTTP/1.1 400"
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"Traceback" not in answer
        writer.close()
        assert (await fixture.ask("GET", "/health")).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"no http at all\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_invalid_http_gets_an_error_body(tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        writer.write(sent)
        head, _, body = (await gone(reader)).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert msgspec.json.decode(body)["error"]["code"] == "bad_request"
        assert "uvicorn.error" not in {record.name for record in caplog.records}


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "half a second head", "the body of what is answered"],
)
async def test_connections_without_complete_headers_are_closed(
    tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S_MAX", 0.5)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        writer.write(sent)

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.sleep(0.1)
                    writer.write(b"x" if sent else b"")

        dripping = asyncio.ensure_future(drip())
        await gone(reader)
        dripping.cancel()
        writer.close()
        assert (await fixture.ask("GET", "/health")).status == 200


async def test_a_turn_may_take_longer_than_the_header_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S_MAX", 0.2)
    async with (
        ModelServer(lambda _: Say("slow", chunks=6, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        for _ in range(2):
            assert (await fixture.say("hello", X_Session_Key="desk")).text == "slow"


async def test_connections_over_the_limit_get_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        open_ones = [await asyncio.open_connection("127.0.0.1", fixture.web.port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port)
        answer = await gone(reader)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"too_many_connections"' in answer
        for _, other in (*open_ones, (reader, writer)):
            other.close()
        await asyncio.sleep(0.1)
        assert (await fixture.ask("GET", "/health")).status == 200


async def test_a_client_that_does_not_read_is_disconnected_and_the_turn_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STUCK_S_MAX", 0.5)
    text = "x" * 8_000_000
    script = lambda _: Say(text, chunks=40, delay_s=0.05)  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        reader, writer = await asyncio.open_connection("127.0.0.1", fixture.web.port, limit=1024)
        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {fixture.local_token}\r\n"
            f"X-Session-Key: desk\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await until(lambda: len(fixture.gateway.worker.subscribers) == 1)
        await until(lambda: not fixture.gateway.worker.subscribers, "the client is dropped")
        assert fixture.gateway.worker.running == 1
        await fixture.rest()
        (turn,) = await fixture.turns(key=http_key("desk"))
        assert turn.assistant_text == text
        writer.transport.abort()
        del reader
