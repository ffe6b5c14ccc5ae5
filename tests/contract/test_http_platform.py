"""HTTP keeps the contract of every platform, seen as `tests/http_as_platform.py` has it, and promises of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.http_as_platform import Building, Callers, HttpAsPlatform
from tests.http_gateway import HttpGateway, http_gateway
from tests.runtime import until

from everthread.config.settings import GatewaySettings
from everthread.domain.errors import StoreBusy
from everthread.domain.model import SessionKey
from everthread.ports.platform import Platform
from everthread.testing import in_loop
from everthread.testing.contracts.platform import CHAT, PlatformContract, RemoteSide, outbound
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer


class TestHttp(PlatformContract):
    @pytest.fixture
    def building(self, tmp_path: Path) -> Building:
        return Building(tmp_path)

    @pytest.fixture
    def remote(self, building: Building) -> RemoteSide:
        return Callers(building)

    @pytest.fixture
    def platform(self, building: Building) -> Platform:
        return HttpAsPlatform(building)

    @in_loop
    async def test_the_longest_text_is_sent_and_a_longer_one_is_refused(
        self, platform: Platform, remote: RemoteSide
    ) -> None:
        """There is no longest answer, and none is cut; it is a question that can be too long."""
        long = "x" * 300_000
        await platform.send(outbound(long))
        assert await remote.shown(CHAT) == [long]
        await platform.aclose()


def echo(request: Any) -> Say:
    said = [str(message.content) for message in request.messages if message.role == "user"]
    # Behind the first line there may be what memory has found.
    return Say(f"You said: {said[-1].splitlines()[0][:100]}")


def slow(request: Any) -> Say:
    return Say(echo(request).text, chunks=5, delay_s=0.1)


async def said_in(there: HttpGateway, chat: str) -> list[str]:
    return [turn.user_text for turn in await there.turns(key=SessionKey.parse(f"agent:main:http:dm:{chat}"))]


async def test_what_is_said_while_others_wait_for_their_answer_comes_in_order(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as there:
        asked: list[asyncio.Future[Any]] = []
        for number in range(6):
            chat = ("desk", "kitchen")[number % 2]
            asked.append(asyncio.ensure_future(there.say(f"word {number}", X_Session_Key=chat)))
            await until(lambda number=number: there.gateway.worker.subscribed > number, "it is taken in")
        assert [(await one).text for one in asked] == [f"You said: word {number}" for number in range(6)]
        assert await said_in(there, "desk") == ["word 0", "word 2", "word 4"]
        assert await said_in(there, "kitchen") == ["word 1", "word 3", "word 5"]


async def test_what_could_not_be_stored_may_be_brought_again_and_is_answered_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        accept, tries = there.gateway.lifecycle.accept, 0

        async def busy_first(inbound: Any, **more: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise StoreBusy("another program holds the write lock; try again")
            return await accept(inbound, **more)

        monkeypatch.setattr(there.gateway.lifecycle, "accept", busy_first)
        refused = await there.say("one", X_Session_Key="desk", Idempotency_Key="1")
        assert refused.status == 503
        assert float(refused.headers["Retry-After"]) > 0
        assert refused.headers.get("X-Should-Retry") != "false", "it was not taken: it must be brought again"
        assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert await said_in(there, "desk") == ["one"]


async def test_what_is_brought_twice_under_one_key_is_one_turn(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        for _ in range(2):
            assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert (await there.say("two", X_Session_Key="desk", Idempotency_Key="2")).text == "You said: two"
        assert await said_in(there, "desk") == ["one", "two"]


async def test_nobody_is_let_in_after_it_was_stopped(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        assert (await there.say("one", X_Session_Key="desk")).status == 200
        async with asyncio.timeout(2.0):
            await there.web.stop()
        with pytest.raises(aiohttp.ClientConnectionError):
            await there.say("two", X_Session_Key="desk")


async def test_a_model_that_can_not_be_reached_is_told_of_in_our_words(tmp_path: Path) -> None:
    """Those who can't be reached are behind us here: the model."""
    model = await ModelServer(echo).__aenter__()
    async with http_gateway(tmp_path, model) as there:
        await model.__aexit__(None, None, None)
        answer = await there.say("one", X_Session_Key="desk")
        assert answer.status in (502, 503)
        assert answer.json["error"]["message"]
        assert "Traceback" not in answer.json["error"]["message"]


async def test_of_many_who_ask_at_once_each_gets_their_own_answer(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as there:
        chats = [f"chat-{number}" for number in range(8)]
        answers = await asyncio.gather(*(there.say(f"from {chat}", X_Session_Key=chat) for chat in chats))
        assert [answer.text for answer in answers] == [f"You said: from {chat}" for chat in chats]
        assert len({answer.headers["X-Session-Id"] for answer in answers}) == len(chats)


async def test_a_question_can_be_too_long_and_an_answer_can_not(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("x" * 300_000)) as model, http_gateway(tmp_path, model) as there:
        assert (await there.say("one", X_Session_Key="desk")).text == "x" * 300_000
        assert (await there.say("x" * 50_000_000, X_Session_Key="desk")).status == 413
        assert await said_in(there, "desk") == ["one"]


async def test_who_writes_too_much_is_told_how_long_to_wait(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=1)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as there:
        assert (await there.say("one", X_Session_Key="desk")).status == 200
        much = await there.say("two", X_Session_Key="desk")
        assert much.status == 429
        assert much.headers["Retry-After"] == "60", "one a minute"
        assert await said_in(there, "desk") == ["one"]


async def test_who_has_left_before_the_answer_can_ask_for_it_again(tmp_path: Path) -> None:
    """Whoever has lost the response asks again, and hears what was answered."""
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as there:
        asked = asyncio.ensure_future(there.say("one", X_Session_Key="desk", Idempotency_Key="1"))
        await until(lambda: there.gateway.worker.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked})
        assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert await said_in(there, "desk") == ["one"]


async def test_a_key_that_is_too_long_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        answer = await there.say("one", X_Session_Key="desk", Idempotency_Key="x" * 1000)
        assert answer.status == 400
        assert not model.requests


async def test_who_leaves_is_answered_all_the_same_and_holds_up_nobody(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, http_gateway(tmp_path, model) as there:
        asked = asyncio.ensure_future(there.say("one", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked}, timeout=2.0)
        assert asked.cancelled()
        assert (await there.say("two", X_Session_Key="kitchen")).text == "You said: two"
        await until(lambda: not there.gateway.worker.busy, "the answer that nobody waits for")
        assert await said_in(there, "desk") == ["one"]


async def test_stopping_twice_is_stopping_once(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        await there.web.stop()
        await there.web.stop()
