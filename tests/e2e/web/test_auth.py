"""Authentication: tokens, local access, and requests that need a token."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway

from everthread.lifecycle import ForgetOwner
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

MODEL = lambda _: Say("Hello.")  # noqa: E731


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_local_requests_act_as_the_owner_without_tokens(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        answer = await fixture.say("hello", X_Session_Key="desk")
        session = await fixture.runtime.store.read(lambda uow: uow.sessions.get(answer.headers["X-Session-Id"]))
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
async def test_web_pages_and_proxied_requests_need_a_token(tmp_path: Path, headers: dict[str, str]) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        for path in ("/api/sessions", "/v1/models", "/metrics", "/api/events"):
            answer = await fixture.ask("GET", path, **headers)
            assert (answer.status, answer.code) == (403, "not_from_here"), path
        token = await fixture.token("anna")
        assert (await fixture.ask("GET", "/api/sessions", token=token, **headers)).status == 200


async def test_local_hosts_and_origins_are_accepted(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        for headers in ({"Host": "localhost:1"}, {"Host": "[::1]:1"}, {"Origin": "http://localhost:3000"}):
            assert (await fixture.ask("GET", "/api/sessions", **headers)).status == 200, headers


async def test_the_last_use_of_a_token_under_a_clock_that_was_ahead_is_replaced(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as there:
        token, used = await there.token("anna"), list[float]()
        for ahead_s in (366 * 86_400.0, 0.0, -200.0):
            there.clock.ahead_s = ahead_s
            assert (await there.ask("GET", "/api/sessions", token=token)).status == 200
            (row,) = await there.runtime.store.read(lambda uow: uow.api_keys.all())
            used.append(row.used_at or 0.0)
        assert used[1] <= time.time()
        assert used[2] == used[1], "a small correction of the clock costs no write"


async def test_every_request_needs_a_token_until_the_last_one_is_revoked(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("anna")
        assert (await fixture.ask("GET", "/api/sessions", token=token)).status == 200
        for wrong in ("", "none", token[:-1] + "y", token.lower() + "z", "et_", "é" * 46):
            answer = await fixture.ask("GET", "/api/sessions", token=wrong)
            assert (answer.status, answer.code) == (401, "invalid_api_key"), wrong
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        (row,) = await fixture.runtime.store.read(lambda uow: uow.api_keys.all())
        assert row.used_at is not None
        assert token not in repr(row)
        await fixture.runtime.store.write(lambda uow: uow.api_keys.remove("anna", "test"))
        assert (await fixture.ask("GET", "/api/sessions", token=token)).status == 401
        assert (await fixture.ask("GET", "/api/sessions", token="none")).status == 200


async def test_the_store_contains_no_token_in_plain_text(tmp_path: Path) -> None:
    async with ModelServer(MODEL) as model, http_gateway(tmp_path, model) as fixture:
        token = await fixture.token("anna")
        await fixture.say("hello", token, X_Session_Key="desk")
        kept = await asyncio.to_thread(everything_in, tmp_path)
        assert b"desk" in kept
        assert token.encode() not in kept


async def test_forgetting_an_owner_revokes_their_tokens(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        anna, ben = await fixture.token("anna"), await fixture.token("ben")
        await fixture.say("hello", anna, X_Session_Key="desk")
        await fixture.runtime.lifecycle.forget(ForgetOwner(), owner="anna")
        assert (await fixture.ask("GET", "/api/sessions", token=anna)).status == 401
        assert (await fixture.ask("GET", "/api/sessions", token=ben)).status == 200
