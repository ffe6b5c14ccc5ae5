"""Test HTTP against the platform contract with the adapter in `tests/http_as_platform.py`, and its own guarantees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.http_as_platform import HttpAsPlatform, HttpGatewayFixture, HttpUsers
from tests.http_gateway import HttpGateway, http_gateway
from tests.runtime import until

from everthread.config.schema import GatewaySettings
from everthread.domain.errors import StoreBusy
from everthread.domain.model import SessionKey
from everthread.ports.platform import Platform
from everthread.testing import in_loop
from everthread.testing.contracts.platform import CHAT, PlatformContract, RemoteSide, outbound
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


class TestHttp(PlatformContract):
    @pytest.fixture
    def building(self, tmp_path: Path) -> HttpGatewayFixture:
        return HttpGatewayFixture(tmp_path)

    @pytest.fixture
    def remote(self, building: HttpGatewayFixture) -> RemoteSide:
        return HttpUsers(building)

    @pytest.fixture
    def platform(self, building: HttpGatewayFixture) -> Platform:
        return HttpAsPlatform(building)

    @in_loop
    async def test_the_longest_text_is_sent_and_a_longer_one_is_refused(
        self, platform: Platform, remote: RemoteSide
    ) -> None:
        """Answers have no length limit and are never cut. Only a request can be too long."""
        long = "x" * 300_000
        await platform.send(outbound(long))
        assert await remote.shown(CHAT) == [long]
        await platform.aclose()


def echo(request: Any) -> Say:
    said = [str(message.content) for message in request.messages if message.role == "user"]
    # Recalled memory may follow the first line.
    return Say(f"You said: {said[-1].splitlines()[0][:100]}")


def slow(request: Any) -> Say:
    return Say(echo(request).text, chunks=5, delay_s=0.1)


async def said_in(fixture: HttpGateway, chat: str) -> list[str]:
    return [turn.user_text for turn in await fixture.turns(key=SessionKey.parse(f"agent:main:http:dm:{chat}"))]


async def test_messages_sent_while_others_wait_for_answers_are_stored_in_order(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as fixture:
        asked: list[asyncio.Future[Any]] = []
        for number in range(6):
            chat = ("desk", "kitchen")[number % 2]
            asked.append(asyncio.ensure_future(fixture.say(f"word {number}", X_Session_Key=chat)))
            await until(lambda number=number: len(fixture.gateway.worker.subscribers) > number, "it is taken in")
        assert [(await one).text for one in asked] == [f"You said: word {number}" for number in range(6)]
        assert await said_in(fixture, "desk") == ["word 0", "word 2", "word 4"]
        assert await said_in(fixture, "kitchen") == ["word 1", "word 3", "word 5"]


async def test_a_message_that_could_not_be_stored_is_answered_on_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        accept, tries = fixture.gateway.lifecycle.accept, 0

        async def busy_first(inbound: Any, **more: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise StoreBusy("another program holds the write lock; try again")
            return await accept(inbound, **more)

        monkeypatch.setattr(fixture.gateway.lifecycle, "accept", busy_first)
        refused = await fixture.say("one", X_Session_Key="desk", Idempotency_Key="1")
        assert refused.status == 503
        assert float(refused.headers["Retry-After"]) > 0
        assert refused.headers.get("X-Should-Retry") != "false", "not accepted, so the client must retry"
        assert (await fixture.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert await said_in(fixture, "desk") == ["one"]


async def test_a_repeated_idempotency_key_creates_one_turn(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        for _ in range(2):
            assert (await fixture.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert (await fixture.say("two", X_Session_Key="desk", Idempotency_Key="2")).text == "You said: two"
        assert await said_in(fixture, "desk") == ["one", "two"]


async def test_a_stopped_server_refuses_connections(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        assert (await fixture.say("one", X_Session_Key="desk")).status == 200
        async with asyncio.timeout(2.0):
            await fixture.web.stop()
        with pytest.raises(aiohttp.ClientConnectionError):
            await fixture.say("two", X_Session_Key="desk")


async def test_an_unreachable_model_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """Stop the model server: over HTTP, the unreachable party is the model."""
    model = await ModelServer(echo).__aenter__()
    async with http_gateway(tmp_path, model) as fixture:
        await model.__aexit__(None, None, None)
        answer = await fixture.say("one", X_Session_Key="desk")
        assert answer.status in (502, 503)
        assert answer.json["error"]["message"]
        assert "Traceback" not in answer.json["error"]["message"]


async def test_concurrent_requests_each_get_their_own_answer(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as fixture:
        chats = [f"chat-{number}" for number in range(8)]
        answers = await asyncio.gather(*(fixture.say(f"from {chat}", X_Session_Key=chat) for chat in chats))
        assert [answer.text for answer in answers] == [f"You said: from {chat}" for chat in chats]
        assert len({answer.headers["X-Session-Id"] for answer in answers}) == len(chats)


async def test_long_requests_are_refused_and_long_answers_are_not(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("x" * 300_000)) as model, http_gateway(tmp_path, model) as fixture:
        assert (await fixture.say("one", X_Session_Key="desk")).text == "x" * 300_000
        assert (await fixture.say("x" * 50_000_000, X_Session_Key="desk")).status == 413
        assert await said_in(fixture, "desk") == ["one"]


async def test_a_rate_limited_client_gets_a_retry_after_header(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=1)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as fixture:
        assert (await fixture.say("one", X_Session_Key="desk")).status == 200
        much = await fixture.say("two", X_Session_Key="desk")
        assert much.status == 429
        assert much.headers["Retry-After"] == "60", "the limit is one message per minute"
        assert await said_in(fixture, "desk") == ["one"]


async def test_a_disconnected_client_can_repeat_its_request_for_the_answer(tmp_path: Path) -> None:
    """The same idempotency key returns the stored answer."""
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as fixture:
        asked = asyncio.ensure_future(fixture.say("one", X_Session_Key="desk", Idempotency_Key="1"))
        await until(lambda: fixture.gateway.worker.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked})
        assert (await fixture.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert await said_in(fixture, "desk") == ["one"]


async def test_an_idempotency_key_that_is_too_long_is_refused_before_the_model_is_called(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        answer = await fixture.say("one", X_Session_Key="desk", Idempotency_Key="x" * 1000)
        assert answer.status == 400
        assert not model.requests


async def test_a_disconnected_request_is_still_answered_and_delays_no_other(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as fixture:
        asked = asyncio.ensure_future(fixture.say("one", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked}, timeout=2.0)
        assert asked.cancelled()
        assert (await fixture.say("two", X_Session_Key="kitchen")).text == "You said: two"
        await until(lambda: not fixture.gateway.worker.busy, "the answer that nobody waits for")
        assert await said_in(fixture, "desk") == ["one"]


async def test_stopping_twice_is_safe(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        await fixture.web.stop()
        await fixture.web.stop()
