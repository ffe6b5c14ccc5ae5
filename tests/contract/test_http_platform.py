"""HTTP keeps what of the contract of every platform can be kept there.

It is no `Platform`: nobody listens to anything, and nothing is sent but what was asked for. Whoever calls is what
stands upstream elsewhere: it holds what was not taken, and brings it again under the same `Idempotency-Key`. So each
promise is looked at from that side, under the name that it has in the contract; those that have no meaning there are
listed, with the reason.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.house import until
from tests.site import Place, site

from everthread.config import Gateway
from everthread.domain.errors import StoreBusy
from everthread.domain.model import SessionKey
from everthread.testing.model_replies import Say
from everthread.testing.model_server import ModelServer
from everthread.testing.platform_contract import PlatformContract

NOTHING_IS_SENT = "the answer is the response: nothing goes out by itself"
NOT_HERE = {
    "test_what_was_said_while_nobody_listened_comes_in": "nothing can be said while nobody listens",
    "test_a_button_that_is_pressed_comes_in_as_its_command": "there is nothing to press",
    "test_what_is_sent_twice_under_one_id_is_shown_once": NOTHING_IS_SENT,
    "test_a_message_can_be_given_another_text": NOTHING_IS_SENT,
    "test_buttons_and_typing_do_no_harm": NOTHING_IS_SENT,
}


def echo(request: Any) -> Say:
    said = [str(message.content) for message in request.messages if message.role == "user"]
    # Behind the first line there may be what memory has found.
    return Say(f"You said: {said[-1].splitlines()[0][:100]}")


def slow(request: Any) -> Say:
    return Say(echo(request).text, chunks=5, delay_s=0.1)


async def said_in(there: Place, chat: str) -> list[str]:
    return [turn.user_text for turn in await there.turns(key=SessionKey.parse(f"agent:main:http:dm:{chat}"))]


async def test_what_is_said_in_a_chat_comes_in_order(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, site(tmp_path, model) as there:
        asked: list[asyncio.Future[Any]] = []
        for number in range(6):
            chat = ("desk", "kitchen")[number % 2]
            asked.append(asyncio.ensure_future(there.say(f"word {number}", X_Session_Key=chat)))
            await until(lambda number=number: there.gateway.working.waited_for > number, "it is taken in")
        assert [(await one).text for one in asked] == [f"You said: word {number}" for number in range(6)]
        assert await said_in(there, "desk") == ["word 0", "word 2", "word 4"]
        assert await said_in(there, "kitchen") == ["word 1", "word 3", "word 5"]


async def test_what_was_not_taken_comes_again_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer(echo) as model, site(tmp_path, model) as there:
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


async def test_what_was_taken_and_acknowledged_stays_so(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, site(tmp_path, model) as there:
        for _ in range(2):
            assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert (await there.say("two", X_Session_Key="desk", Idempotency_Key="2")).text == "You said: two"
        assert await said_in(there, "desk") == ["one", "two"]


async def test_listening_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, site(tmp_path, model) as there:
        assert (await there.say("one", X_Session_Key="desk")).status == 200
        async with asyncio.timeout(2.0):
            await there.web.stop()
        with pytest.raises(aiohttp.ClientConnectionError):
            await there.say("two", X_Session_Key="desk")


async def test_nobody_to_be_reached_is_said_in_our_words(tmp_path: Path) -> None:
    """Those who can't be reached are behind us here: the model."""
    model = await ModelServer(echo).__aenter__()
    async with site(tmp_path, model) as there:
        await model.__aexit__(None, None, None)
        answer = await there.say("one", X_Session_Key="desk")
        assert answer.status in (502, 503)
        assert answer.json["error"]["message"]
        assert "Traceback" not in answer.json["error"]["message"]


async def test_what_is_sent_is_shown_where_it_belongs(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, site(tmp_path, model) as there:
        chats = [f"chat-{number}" for number in range(8)]
        answers = await asyncio.gather(*(there.say(f"from {chat}", X_Session_Key=chat) for chat in chats))
        assert [answer.text for answer in answers] == [f"You said: from {chat}" for chat in chats]
        assert len({answer.headers["X-Session-Id"] for answer in answers}) == len(chats)


async def test_the_longest_text_goes_out_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    """There is no longest answer; a question can be too long."""
    async with ModelServer(lambda _: Say("x" * 300_000)) as model, site(tmp_path, model) as there:
        assert (await there.say("one", X_Session_Key="desk")).text == "x" * 300_000
        assert (await there.say("x" * 50_000_000, X_Session_Key="desk")).status == 413
        assert await said_in(there, "desk") == ["one"]


async def test_being_told_to_wait_is_passed_on(tmp_path: Path) -> None:
    gateway = Gateway(messages_per_minute=1)
    async with ModelServer(echo) as model, site(tmp_path, model, gateway=gateway) as there:
        assert (await there.say("one", X_Session_Key="desk")).status == 200
        much = await there.say("two", X_Session_Key="desk")
        assert much.status == 429
        assert float(much.headers["Retry-After"]) > 0
        assert await said_in(there, "desk") == ["one"]


async def test_a_send_of_which_nothing_is_heard_is_uncertain(tmp_path: Path) -> None:
    """Whoever has lost the response asks again, and hears what was answered."""
    async with ModelServer(slow) as model, site(tmp_path, model) as there:
        asked = asyncio.ensure_future(there.say("one", X_Session_Key="desk", Idempotency_Key="1"))
        await until(lambda: there.gateway.working.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked})
        assert (await there.say("one", X_Session_Key="desk", Idempotency_Key="1")).text == "You said: one"
        assert await said_in(there, "desk") == ["one"]


async def test_what_will_never_be_taken_is_refused(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, site(tmp_path, model) as there:
        answer = await there.say("one", X_Session_Key="desk", Idempotency_Key="x" * 1000)
        assert answer.status == 400
        assert not model.requests


async def test_a_send_can_be_cancelled(tmp_path: Path) -> None:
    async with ModelServer(slow) as model, site(tmp_path, model) as there:
        asked = asyncio.ensure_future(there.say("one", X_Session_Key="desk"))
        await until(lambda: there.gateway.working.running == 1, "it is being answered")
        asked.cancel()
        await asyncio.wait({asked}, timeout=2.0)
        assert asked.cancelled()
        assert (await there.say("two", X_Session_Key="kitchen")).text == "You said: two"
        await until(lambda: not there.gateway.working.busy, "the answer that nobody waits for")
        assert await said_in(there, "desk") == ["one"]


async def test_closing_is_safe_at_any_time(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, site(tmp_path, model) as there:
        await there.web.stop()
        await there.web.stop()


def test_every_promise_is_looked_at_or_has_no_meaning_here() -> None:
    promised = {name for name in dir(PlatformContract) if name.startswith("test_")}
    here = {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}
    assert promised - here == NOT_HERE.keys()
