"""Who gets in over HTTP, and what becomes of requests that are not as they must be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.gateway import GatewayFixture, gateway_fixture
from tests.http_gateway import http_gateway

from everthread.config.settings import GatewaySettings, HttpSettings, WebhookSettings
from everthread.domain.errors import BadConfig
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider
from everthread.web import Web

MODEL = lambda _: Say("Hello.")  # noqa: E731


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def bound_to(there: GatewayFixture, host: str, port: int = 0) -> Web:
    settings = there.gateway.settings
    changed = msgspec.structs.replace(settings.gateway, http=HttpSettings(host=host, port=port))
    there.gateway.settings = msgspec.structs.replace(settings, gateway=changed)
    return there.runtime.web(there.gateway)


async def test_without_tokens_whoever_is_at_this_machine_is_its_owner(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        answer = await there.say("hello", X_Session_Key="desk")
        session = await there.runtime.store.read(lambda uow: uow.sessions.get(answer.headers["X-Session-Id"]))
        assert session is not None
        assert session.owner == "me"
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8642"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"X_Forwarded_For": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
    ],
)
async def test_a_page_or_a_proxy_does_not_get_in_without_a_token(tmp_path: Path, headers: dict[str, str]) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        for path in ("/api/sessions", "/v1/models", "/metrics", "/api/events"):
            answer = await there.ask("GET", path, **headers)
            assert (answer.status, answer.code) == (403, "not_from_here"), path
        token = await there.token("anna")
        assert (await there.ask("GET", "/api/sessions", token=token, **headers)).status == 200


async def test_a_page_of_this_machine_gets_in(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        for headers in ({"Host": "localhost:1"}, {"Host": "[::1]:1"}, {"Origin": "http://localhost:3000"}):
            assert (await there.ask("GET", "/api/sessions", **headers)).status == 200, headers


async def test_once_there_is_a_token_everybody_needs_one_until_it_is_revoked(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        token = await there.token("anna")
        assert (await there.ask("GET", "/api/sessions", token=token)).status == 200
        for wrong in ("", "none", token[:-1] + "y", token.lower() + "z", "et_", "é" * 46):
            answer = await there.ask("GET", "/api/sessions", token=wrong)
            assert (answer.status, answer.code) == (401, "invalid_api_key"), wrong
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        (row,) = await there.runtime.store.read(lambda uow: uow.api_keys.all())
        assert row.used_at is not None
        assert token not in repr(row)
        await there.runtime.store.write(lambda uow: uow.api_keys.remove("anna", "test"))
        assert (await there.ask("GET", "/api/sessions", token=token)).status == 401
        assert (await there.ask("GET", "/api/sessions", token="none")).status == 200


async def test_nothing_is_kept_that_a_token_could_be_read_from(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        token = await there.token("anna")
        await there.say("hello", token, X_Session_Key="desk")
        kept = await asyncio.to_thread(everything_in, tmp_path)
        assert b"desk" in kept
        assert token.encode() not in kept


async def test_a_door_to_everybody_is_not_opened_without_tokens(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, gateway_fixture(tmp_path, model) as there:
        with pytest.raises(BadConfig, match="tokens new"):
            await bound_to(there, "0.0.0.0").start()
        from everthread.store.api_keys import ApiKey

        await there.runtime.store.write(lambda uow: uow.api_keys.add(ApiKey("h", "anna", "x", 1.0)))
        web = bound_to(there, "0.0.0.0")
        await web.start()
        assert web.port
        await web.stop()


async def test_a_port_that_is_taken_and_a_hook_without_a_secret_are_told_in_words(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        with pytest.raises(BadConfig, match=r"can't listen on 127\.0\.0\.1"):
            await bound_to(there, "127.0.0.1", there.web.port).start()
    hooked = GatewaySettings(webhooks={"ci": WebhookSettings("NO_SUCH_SECRET")})
    async with ModelServer(MODEL) as model, gateway_fixture(tmp_path / "b", model, gateway=hooked) as there:
        with pytest.raises(BadConfig, match="NO_SUCH_SECRET"):
            await bound_to(there, "127.0.0.1").start()


async def test_a_bad_request_is_told_so_in_one_shape(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        big = b'{"messages":[{"role":"user","content":"' + b"x" * 2_200_000 + b'"}]}'
        chat = "/v1/chat/completions"
        for (method, path, body), status in {
            ("POST", chat, b"{no json"): 400,
            ("POST", chat, b"\xff\xfe"): 400,
            ("POST", chat, b"[" * 100_000): 400,
            ("POST", chat, b""): 400,
            ("POST", chat, big): 413,
            ("GET", "/nowhere", None): 404,
            ("GET", "/api/sessions/", None): 404,
            ("PUT", "/api/sessions", None): 405,
            ("GET", chat, None): 405,
            ("GET", "/api/sessions?limit=0", None): 400,
            ("GET", "/api/sessions?limit=x", None): 400,
            ("GET", "/api/sessions?cursor=%00", None): 400,
            ("GET", "/api/sessions?cursor=W10=", None): 400,
        }.items():
            answer = await there.ask(method, path, body)
            assert answer.status == status, (path, body and body[:20])
            assert set(answer.json["error"]) >= {"message", "type", "code"}
            assert b"Traceback" not in answer.body
        for name in ("", "é", "y" * 129):
            assert (await there.say("hello", X_Session_Key=name)).status == 400, repr(name)
        assert (await there.say("hello", X_Session_Key="x", Idempotency_Key="y" * 256)).status == 400


async def test_a_body_without_a_length_is_cut_where_it_is_too_long(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(100):
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.web.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        async with asyncio.timeout(5):
            try:
                answer = await reader.read()
            except ConnectionResetError:
                # It is cut off while it is still sending: it may not get to read why.
                answer = b"HTTP/1.1 400"
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"Traceback" not in answer
        writer.close()
        assert (await there.ask("GET", "/health")).status == 200


async def test_what_goes_wrong_inside_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:

        async def broken(_: object) -> None:
            raise RuntimeError("secret words")

        with monkeypatch.context() as patched:
            patched.setattr(there.gateway.store, "read", broken)
            answer = await there.ask("GET", "/api/sessions")
        assert (answer.status, answer.code) == (500, "internal_error")
        assert b"secret words" not in answer.body


async def test_metrics_say_what_was_taken_and_answered(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model, providers=(RecordingProvider(),)) as there:
        await there.say("hello", X_Session_Key="desk")
        await there.rest()
        lines = (await there.ask("GET", "/metrics")).body.decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert values["everthread_messages_taken_total"] == "1"
        assert values["everthread_messages_answered_total"] == "1"
        assert values['everthread_platform_up{platform="fake"}'] == "1"
        assert values['everthread_http_requests_total{status="200"}'] == "1"
        assert float(values["everthread_resident_memory_bytes"]) > 10_000_000
        assert 'everthread_journal_waiting{provider="recording"}' in values
        assert (await there.ask("GET", "/ready")).json == {"status": "ready"}
