"""Authentication: a token for every route, whoever asks and wherever the request comes from."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tests.gateway import echo
from tests.http_gateway import HttpGateway, http_gateway

from everthread.config.schema import HttpSettings
from everthread.lifecycle import ForgetOwner
from everthread.lifecycle.local_token import LocalToken
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import auth_failures
from everthread.web.app import OPERATIONS
from everthread.web.openapi import AuthMode

MODEL = lambda _: Say("Hello.")  # noqa: E731
OPEN_PATHS = {"/health", "/ready", "/openapi.json"}
PROXIES = {
    "nginx proxy_pass without further settings": {"Host": "127.0.0.1:8642", "Connection": "close"},
    "nginx with the usual proxy_set_header": {
        "Host": "agent.example",
        "X_Real_IP": "203.0.113.7",
        "X_Forwarded_For": "203.0.113.7",
        "X_Forwarded_Proto": "https",
    },
    "nginx that claims the client is local": {"Host": "localhost", "X_Forwarded_For": "127.0.0.1"},
    "Apache mod_proxy": {
        "X_Forwarded_For": "203.0.113.7",
        "X_Forwarded_Host": "agent.example",
        "X_Forwarded_Server": "agent.example",
    },
    "Caddy": {"X_Forwarded_For": "203.0.113.7", "X_Forwarded_Proto": "https", "X_Forwarded_Host": "agent.example"},
    "Squid": {"Via": "1.1 proxy (squid)", "X_Forwarded_For": "unknown", "Cache_Control": "max-age=0"},
    "a proxy with RFC 7239": {"Forwarded": "for=203.0.113.7;host=agent.example;proto=https"},
    "a tunnel that forwards bytes": {"Host": "localhost:8642", "Origin": "http://localhost:8642"},
}
WEB_PAGES = {
    "a page of another site": {"Origin": "https://evil.example", "Sec_Fetch_Site": "cross-site"},
    "a page with a DNS name for this machine": {"Host": "evil.example:8642"},
    "a sandboxed page": {"Origin": "null"},
}


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def every_route(fixture: HttpGateway, token: str, **headers: str) -> dict[str, tuple[int, str]]:
    """Ask on every route that needs a token. Return status and code of the refusals."""
    session_id = await fixture.converse("something private")
    found: dict[str, tuple[int, str]] = {}
    for one in OPERATIONS:
        if one.auth is AuthMode.TOKEN:
            path = one.path.replace("{session_id}", session_id)
            body: Any = b"{}" if one.method in ("POST", "PATCH") else None
            answer = await fixture.ask(one.method, path, body, token, **headers)
            found[f"{one.method} {one.path}"] = (answer.status, answer.code)
    assert (await fixture.ask("GET", f"/api/sessions/{session_id}")).status == 200, "nothing was deleted"
    return found


def _failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged failures; another test may have let the logger record more than warnings."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("headers", [*PROXIES.values(), *WEB_PAGES.values(), {}], ids=[*PROXIES, *WEB_PAGES, "local"])
async def test_a_proxied_request_without_a_token_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        refused = await every_route(fixture, "", **headers)
        assert set(refused.values()) == {(401, "invalid_api_key")}, refused
        assert (await fixture.ask("GET", "/api/sessions", **headers)).status == 200, "with the token it is served"


async def test_another_user_of_this_machine_is_refused(tmp_path: Path) -> None:
    """Every OS user reaches loopback; only the one who can read the file has the token."""
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        for path in ("/api/sessions", "/v1/models", "/metrics", "/api/events"):
            assert (await fixture.ask("GET", path, token="")).status == 401, path
        assert fixture.runtime.settings.local_token_path.stat().st_mode & 0o077 == 0
        answer = await fixture.say("hello", X_Session_Key="desk")
        session = await fixture.runtime.store.read(lambda uow: uow.sessions.get(answer.headers["X-Session-Id"]))
        assert session is not None
        assert session.owner == "me"
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_only_the_declared_routes_are_open(tmp_path: Path) -> None:
    modes = {one.path: one.auth for one in OPERATIONS if one.auth is not AuthMode.TOKEN}
    assert modes == dict.fromkeys(OPEN_PATHS, AuthMode.OPEN) | {"/hooks/{name}": AuthMode.SIGNED}
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        for path in OPEN_PATHS:
            assert (await fixture.ask("GET", path, token="")).status == 200


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("anna")
        assert (await fixture.ask("GET", "/api/sessions", token=token)).status == 200
        for wrong in ("", "none", token[:-1] + "y", token.lower() + "z", "et_", "é" * 46):
            answer = await fixture.ask("GET", "/api/sessions", token=wrong)
            assert (answer.status, answer.code) == (401, "invalid_api_key"), wrong
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "everthread tokens show" in answer.json["error"]["message"]
        basic = await fixture.ask("GET", "/api/sessions", token="", Authorization=f"Basic {token}")
        assert basic.status == 401
        row = await fixture.runtime.store.read(lambda uow: uow.api_keys.all()[0])
        assert (row.owner, row.used_at is not None) == ("anna", True)
        assert token not in repr(row)


async def test_revoking_the_last_token_locks_the_door(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token, local = await fixture.token("anna"), fixture.local_token
        keys = LocalToken(fixture.runtime.store, fixture.clock, fixture.runtime.settings.local_token_path)
        assert await keys.revoke("anna", "test") is not None
        assert await keys.revoke("me", "local") is not None
        for tried in (token, local, "", "none"):
            assert (await fixture.ask("GET", "/api/sessions", token=tried)).status == 401, tried
        refused = await every_route_of_nobody(fixture)
        assert refused == {401}
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        assert not fixture.runtime.settings.local_token_path.exists(), "a restart makes no new token"
        for tried in (token, local, "", "none"):
            assert (await fixture.ask("GET", "/api/sessions", token=tried)).status == 401, tried


async def every_route_of_nobody(fixture: HttpGateway) -> set[int]:
    return {
        (await fixture.ask(one.method, one.path.replace("{session_id}", "x"), token="")).status
        for one in OPERATIONS
        if one.auth is AuthMode.TOKEN
    }


async def test_forgetting_the_owner_does_not_make_a_new_token(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        await fixture.say("hello", X_Session_Key="desk")
        await fixture.runtime.lifecycle.forget(ForgetOwner(), owner="me")
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        assert not fixture.runtime.settings.local_token_path.exists()
        assert (await fixture.ask("GET", "/api/sessions", token="")).status == 401


async def test_a_read_only_token_cannot_change_or_spend_anything(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("me", "reader", read_only=True)
        session_id = await fixture.converse("hello")
        for one in OPERATIONS:
            if one.auth is not AuthMode.TOKEN or one.path == "/api/events":
                continue
            answer = await fixture.ask(one.method, one.path.replace("{session_id}", session_id), token=token)
            if one.method == "GET":
                assert answer.status == 200, one.path
            else:
                assert (answer.status, answer.code) == (403, "read_only_token"), one.path
        assert (await fixture.say("spend something", token)).status == 403
        assert not any(b"spend something" in request for request in model.requests)
        assert (await fixture.ask("GET", f"/api/sessions/{session_id}")).status == 200


async def test_an_expired_token_opens_nothing(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        now = fixture.clock.now()
        token = await fixture.token("anna", expires_at=now + 3600)
        assert (await fixture.ask("GET", "/api/sessions", token=token)).status == 200
        fixture.clock.advance(3601)
        answer = await fixture.ask("GET", "/api/sessions", token=token)
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert "expired" in answer.json["error"]["message"]
        assert "tokens new" in answer.json["error"]["message"]


async def test_the_last_use_of_a_token_under_a_clock_that_was_ahead_is_replaced(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        token, used = await there.token("anna"), list[float]()
        for ahead_s in (366 * 86_400.0, 0.0, -200.0):
            there.clock.ahead_s = ahead_s
            assert (await there.ask("GET", "/api/sessions", token=token)).status == 200
            row = await there.runtime.store.read(lambda uow: uow.api_keys.all()[0])
            used.append(row.used_at or 0.0)
        assert used[1] <= time.time()
        assert used[2] == used[1], "a small correction of the clock costs no write"


async def test_the_store_contains_no_token_in_plain_text(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token, local = await fixture.token("anna"), fixture.local_token
        await fixture.say("hello", token, X_Session_Key="desk")
        await fixture.say("hello", X_Session_Key="desk")
        fixture.runtime.settings.local_token_path.unlink()
        kept = await asyncio.to_thread(everything_in, tmp_path)
        assert b"desk" in kept
        assert token.encode() not in kept
        assert local.encode() not in kept


async def test_forgetting_an_owner_revokes_their_tokens(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        await fixture.say("hello", anna, X_Session_Key="desk")
        await fixture.runtime.lifecycle.forget(ForgetOwner(), owner="anna")
        assert (await fixture.ask("GET", "/api/sessions", token=anna)).status == 401
        assert (await fixture.ask("GET", "/api/sessions", token=ben)).status == 200


async def test_a_forged_address_gives_no_access_and_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        with caplog.at_level(logging.WARNING, "everthread.web"):
            assert (await fixture.ask("GET", "/api/sessions", token="", X_Forwarded_For="198.51.100.9")).status == 401
        assert _failures(caplog) == ["failed authentication from 127.0.0.1: no token"]


async def test_a_trusted_proxy_gives_the_address_for_the_log_and_no_access(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    http = HttpSettings(port=0, trusted_proxies=("127.0.0.0/8",))
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model, http=http) as fixture:
        with caplog.at_level(logging.WARNING, "everthread.web"):
            refused = await fixture.ask("GET", "/metrics", token="", X_Forwarded_For="127.0.0.1, 198.51.100.9")
            assert refused.status == 401
            # Even if the proxy says that the client is this machine.
            assert (await fixture.ask("GET", "/metrics", token="x", X_Forwarded_For="127.0.0.1")).status == 401
        assert _failures(caplog) == [
            "failed authentication from 198.51.100.9: no token",
            "failed authentication from 127.0.0.1: malformed token",
        ]


async def test_a_wrong_webhook_signature_is_a_failed_authentication(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        with caplog.at_level(logging.WARNING, "everthread.web"):
            assert (await fixture.ask("POST", "/hooks/ci", {}, token="")).status == 401
        assert _failures(caplog) == ["failed authentication from 127.0.0.1: bad signature"]


async def test_guessing_tokens_is_slowed_down_and_a_valid_token_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_failures, "FIRST_DELAY_S", 0.3)
    monkeypatch.setattr(auth_failures, "DELAY_S_MAX", 60.0)
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        guess = lambda: fixture.ask("GET", "/api/sessions", token="et_" + "x" * 43)  # noqa: E731
        for _ in range(auth_failures.FREE):
            await guess()
        began = time.monotonic()
        assert (await guess()).status == 401
        assert time.monotonic() - began > 0.25
        guesses = [asyncio.ensure_future(guess()) for _ in range(20)]
        done, waiting = await asyncio.wait(guesses, timeout=0.4)
        assert len(waiting) <= auth_failures.WAITING_PER_ADDRESS_MAX
        assert {one.result().status for one in done} == {429}
        assert all(int(one.result().headers["Retry-After"]) >= 1 for one in done)
        began = time.monotonic()
        assert (await fixture.ask("GET", "/api/sessions")).status == 200
        assert time.monotonic() - began < 0.25, "a valid token at the same address is not delayed"
        assert b"everthread_authentication_failures_total 24" in (await fixture.ask("GET", "/metrics")).body
        assert (await guess()).status == 401, "a success clears the count"
        for one in waiting:
            one.cancel()


async def test_waiting_guesses_do_not_delay_the_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_failures, "FIRST_DELAY_S", 60.0)
    monkeypatch.setattr(auth_failures, "DELAY_S_MAX", 60.0)
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        for _ in range(auth_failures.FREE):
            await fixture.ask("GET", "/api/sessions", token="")
        waiting = asyncio.ensure_future(fixture.ask("GET", "/api/sessions", token=""))
        await asyncio.wait({waiting}, timeout=0.2)
        assert not waiting.done()
        began = time.monotonic()
        await fixture.web.stop()
        assert time.monotonic() - began < 1.0
        assert (await waiting).status == 401
