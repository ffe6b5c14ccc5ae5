"""Messages in a conversation over HTTP: stored once, answered by a turn."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key
from tests.runtime import until

from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, Role, SessionKey, SessionKind, TurnStatus
from everthread.testing.model_server.replies import Raw, Say
from everthread.testing.model_server.server import ModelServer
from everthread.web import conversation


async def sent(model: ModelServer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in model.requests]


CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def test_a_conversation_continues_by_its_key_and_by_its_id(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        async with openai.AsyncOpenAI(
            base_url=fixture.url + "/v1", api_key=fixture.local_token, max_retries=0
        ) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="everthread",
                messages=[{"role": "user", "content": "ignored"}, {"role": "user", "content": "one"}],
                extra_headers={"X-Session-Key": "desk"},
            )
        session_id = raw.headers["X-Session-Id"]
        assert (raw.headers["X-Session-Key"], (raw.parse()).choices[0].message.content) == ("desk", "You said one")
        by_id = await fixture.say("two", X_Session_Id=session_id)
        assert (by_id.status, by_id.headers["X-Session-Id"], by_id.text) == (200, session_id, "You said two")
        by_key = await fixture.say("three", X_Session_Key="desk")
        assert by_key.headers["X-Session-Id"] == session_id
        turns = await fixture.turns(session_id)
        assert [turn.user_text for turn in turns] == ["one", "two", "three"]
        assert by_key.headers["X-Turn-Id"] == turns[-1].turn_id
        assert by_key.json["usage"]["total_tokens"] == 15


async def test_a_conversation_that_names_a_scheduled_session_continues_in_one_copy(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        lifecycle, owner = there.runtime.lifecycle, there.runtime.settings.owner
        work = SessionKey.parse("agent:main:schedules:dm:garden")
        await lifecycle.cross(work, New(kind=SessionKind.CRON), owner=owner)
        await lifecycle.accept(Inbound(work, owner, "water the plants"))
        claim = await lifecycle.begin_turn(work)
        assert claim is not None
        await lifecycle.commit_turn(claim, [Message(Role.USER, "water the plants")], "watered")
        scheduled = claim.ref.session_id

        first = await there.say("which plants?", X_Session_Id=scheduled)
        assert (first.status, first.text) == (200, "You said which plants?")
        copy = first.headers["X-Session-Id"]
        assert copy != scheduled
        for header in (scheduled, copy):
            again = await there.say("and when?", X_Session_Id=header)
            assert (again.status, again.headers["X-Session-Id"]) == (200, copy)
        assert [turn.user_text for turn in await there.turns(copy)] == ["which plants?", "and when?", "and when?"]
        assert [turn.user_text for turn in await there.turns(scheduled)] == ["water the plants"]
        listed = (await there.ask("GET", "/api/sessions")).json["data"]
        assert [(one["id"], one["parent"]) for one in listed] == [(copy, scheduled)]


async def test_a_stream_ends_after_the_commit(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        answer = await fixture.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk")
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = answer.body.decode().strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        (turn,) = await fixture.turns(answer.headers["X-Session-Id"])
        assert (turn.turn_id, turn.assistant_text) == (answer.headers["X-Turn-Id"], "You said hello")


async def test_words_are_not_delayed_by_events_that_are_not_sent(tmp_path: Path) -> None:
    def piece(**delta: str) -> bytes:
        return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n"

    thinks = piece(content="words") + piece(reasoning_content="hm")
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    raw = Raw((thinks, piece(content=" more") + end), delay_s=1.0)
    async with ModelServer(lambda _: raw) as model, http_gateway(tmp_path, model) as fixture:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        sent = fixture.http.post(
            fixture.url + "/v1/chat/completions", json=body, headers={**fixture.auth, "X-Session-Key": "desk"}
        )
        async with sent as response:
            read = b""
            while b"words" not in read:
                read += await response.content.readany()
            assert b"more" not in read, "words must be sent without waiting for the next ones"
            assert b"more" in await response.read()


async def test_words_are_streamed_as_they_are_written(tmp_path: Path) -> None:
    said = "words that take their time"
    async with (
        ModelServer(lambda _: Say(said, chunks=5, delay_s=0.3)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        sent = fixture.http.post(
            fixture.url + "/v1/chat/completions", json=body, headers={**fixture.auth, "X-Session-Key": "desk"}
        )
        async with sent as response:
            read = b""
            while b"words" not in read:
                read += await response.content.readany()
            assert fixture.gateway.worker.running == 1
            read += await response.read()
        pieces = [line.removeprefix(b"data: ") for line in read.strip().split(b"\n\n")]
        deltas = [choice["delta"] for piece in pieces[:-1] for choice in msgspec.json.decode(piece)["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == said


async def test_a_turn_goes_on_after_the_client_disconnects(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow words", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "hello"}], "stream": stream}
            asking = asyncio.ensure_future(
                fixture.ask("POST", "/v1/chat/completions", body, X_Session_Key=f"desk{stream}")
            )
            await until(lambda: fixture.gateway.worker.running == 1)
            asking.cancel()
            await asyncio.wait({asking})
            await fixture.rest()
            (turn,) = await fixture.turns(key=http_key(f"desk{stream}"))
            assert (turn.status, turn.assistant_text) == (TurnStatus.DONE, "slow words")
        await until(lambda: not fixture.gateway.worker.subscribers, "nobody is told any more")


async def test_commands_work_as_on_any_platform(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        first = await fixture.say("hello", X_Session_Key="desk")
        new = await fixture.say("/new Trip to Porto", X_Session_Key="desk")
        assert "Trip to Porto" in new.text
        assert new.headers["X-Session-Id"] != first.headers["X-Session-Id"]
        second = await fixture.say("hi", X_Session_Key="desk")
        assert second.headers["X-Session-Id"] == new.headers["X-Session-Id"]
        assert "Did you mean /new" in (await fixture.say("/nwe", X_Session_Key="desk")).text
        export = await fixture.say("/export", X_Session_Key="desk")
        assert "You said hi" in export.text
        assert "queue" in (await fixture.say("/queue later", X_Session_Key="desk")).text.lower()
        await fixture.rest()
        assert [turn.user_text for turn in await fixture.turns(key=http_key("desk"))] == ["hi", "later"]


async def test_messages_before_a_new_session_get_409(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        running = asyncio.ensure_future(fixture.say("m1", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1)
        old = await fixture.session(http_key("desk"))
        waiting = asyncio.ensure_future(fixture.say("m2", X_Session_Key="desk"))
        await until(lambda: len(fixture.gateway.worker.subscribers) == 2)
        new = await fixture.say("/new", X_Session_Key="desk")
        for answer in (await waiting, await running):
            assert (answer.status, answer.code) == (409, "set_aside")
            assert answer.headers["X-Session-Id"] == old.id != new.headers["X-Session-Id"]


async def test_requests_with_the_same_idempotency_key_are_handled_once(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        asked = [
            asyncio.ensure_future(fixture.say("hello", X_Session_Key="desk", Idempotency_Key="a")) for _ in range(3)
        ]
        assert [(await one).text for one in asked] == ["slow"] * 3
        late = await fixture.say("hello", X_Session_Key="desk", Idempotency_Key="a")
        (turn,) = await fixture.turns(key=http_key("desk"))
        assert (late.text, late.headers["X-Turn-Id"]) == ("slow", turn.turn_id)
        other = await fixture.say("hello", X_Session_Key="elsewhere", Idempotency_Key="a")
        assert (other.status, other.code) == (409, "idempotency_key_used")
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        again = await fixture.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk", Idempotency_Key="a")
        assert again.body.endswith(b"data: [DONE]\n\n")
        assert len(await fixture.turns(key=http_key("desk"))) == 1


async def test_unstored_commands_are_not_stored(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        answer = await fixture.say("/pair ABCD2345", X_Session_Key="desk")
        assert "everthread pairing approve" in answer.text
        assert "/undo" in (await fixture.say("/help", X_Session_Key="desk")).text
        assert await fixture.runtime.store.read(lambda uow: uow.inbox.get(1)) is None


async def test_a_message_of_a_megabyte_is_answered(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Long.")) as model, http_gateway(tmp_path, model) as fixture:
        text = "word " * 200_000
        answer = await fixture.say(text, X_Session_Key="desk")
        assert answer.text == "Long."
        (turn,) = await fixture.turns(answer.headers["X-Session-Id"])
        assert len(turn.user_text) == len(text)


async def test_a_message_for_a_named_session_never_reaches_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A /new runs between routing the message and storing it."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one")
        lifecycle, place = fixture.runtime.lifecycle, http_key(f"id-{old}")
        accept, moved = lifecycle.accept, False

        async def late(*given: Any, **more: Any) -> Any:
            nonlocal moved
            if not moved:
                moved = True
                await lifecycle.cross(place, New(), owner="me")
            return await accept(*given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(lifecycle, "accept", late)
            answer = await fixture.say("two", X_Session_Id=old)
        assert moved
        assert (answer.status, answer.code) == (409, "left")
        again = await fixture.say("three", X_Session_Id=old)
        assert again.headers["X-Session-Id"] == old
        assert [turn.user_text for turn in await fixture.turns(old)] == ["one", "three"]


async def test_a_message_for_a_named_session_is_refused_behind_a_waiting_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queued command may change the session, and the message would follow it."""
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one")
        await fixture.say("two", X_Session_Id=old)
        with monkeypatch.context() as patched:
            patched.setattr(fixture.gateway.worker, "submit", lambda *_: None)
            new = asyncio.ensure_future(fixture.say("/new", X_Session_Id=old))
            await until(lambda: len(fixture.gateway.worker.subscribers) == 1)
            for text in ("three", "/title Three"):
                answer = await fixture.say(text, X_Session_Id=old)
                assert (answer.status, answer.code) == (409, "left"), text
            # /stop is accepted without waiting.
            stop = asyncio.ensure_future(fixture.say("/stop", X_Session_Id=old))
            await until(lambda: len(fixture.gateway.worker.subscribers) == 2)
            # /queue reports the refusal in its reply.
            assert "send it again" in (await fixture.say("/queue three", X_Session_Id=old)).text
        fixture.gateway.worker.wake(http_key(f"id-{old}"))
        assert (await new).status == (await stop).status == 200
        await fixture.rest()
        assert not await fixture.turns(key=http_key(f"id-{old}"))
        assert [turn.user_text for turn in await fixture.turns(old)] == ["one", "two"]


async def test_an_idempotency_key_of_another_message_is_refused(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        first = asyncio.ensure_future(fixture.say("one", X_Session_Key="desk", Idempotency_Key="a"))
        await until(lambda: fixture.gateway.worker.running == 1)
        for _ in range(2):
            other = await fixture.say("two", X_Session_Key="desk", Idempotency_Key="a")
            assert (other.status, other.code) == (409, "idempotency_key_used")
            assert (await first).text == "slow"
        assert (await fixture.say("one", X_Session_Key="desk", Idempotency_Key="a")).text == "slow"


async def test_a_repeated_request_does_not_move_the_conversation_back(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        old = await fixture.converse("one")
        answer = await fixture.say("two", X_Session_Id=old, Idempotency_Key="a")
        new = await fixture.say("/new", X_Session_Key=f"id-{old}")
        again = await fixture.say("two", X_Session_Id=old, Idempotency_Key="a")
        assert (again.status, again.text, again.headers["X-Session-Id"]) == (200, answer.text, old)
        assert (await fixture.session(http_key(f"id-{old}"))).id == new.headers["X-Session-Id"]


async def test_automatic_retries_of_the_client_do_not_repeat_a_message(tmp_path: Path) -> None:
    """The official client retries after 409 and 5xx unless a header forbids it."""
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        client = openai.AsyncOpenAI(base_url=fixture.url + "/v1", api_key=fixture.local_token, max_retries=3)
        for name, command in (("left", "/new"), ("stopped", "/stop")):
            asking = asyncio.ensure_future(
                client.chat.completions.create(
                    model="everthread",
                    messages=[{"role": "user", "content": "hello"}],
                    extra_headers={"X-Session-Key": name},
                )
            )
            await until(lambda: fixture.gateway.worker.running == 1)
            await fixture.say(command, X_Session_Key=name)
            with contextlib.suppress(openai.APIStatusError):
                await asking
            await fixture.rest()
        taken = [await fixture.runtime.store.read(lambda uow, n=n: uow.inbox.get(n)) for n in range(1, 9)]
        assert [row.inbound.key.chat for row in taken if row is not None and not row.inbound.command] == [
            "left",
            "stopped",
        ]
        await client.close()


async def test_a_message_stopped_before_its_first_word_gets_409(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("slow", delay_s=5)) as model, http_gateway(tmp_path, model) as fixture:
        asking = asyncio.ensure_future(fixture.say("hello", X_Session_Key="desk"))
        await until(lambda: fixture.gateway.worker.running == 1)
        await fixture.say("/stop", X_Session_Key="desk")
        answer = await asking
        assert (answer.status, answer.code) == (409, "stopped")
        assert answer.headers["X-Session-Id"]
        assert [turn.user_text for turn in await fixture.turns(key=http_key("desk"))] == ["hello"]


async def test_the_queue_of_a_slow_client_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "QUEUED_MAX", 5)
    # More than the socket buffers can hold.
    async with (
        ModelServer(lambda _: Say("y" * 16_000_000, chunks=800)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        async with fixture.http.post(
            fixture.url + CHAT, json=BODY | {"stream": True}, headers={**fixture.auth, "X-Session-Key": "desk"}
        ) as response:
            await fixture.rest()
            read = await response.read()
        assert b'"too_slow"' in read
        assert b"[DONE]" not in read
        (turn,) = await fixture.turns(key=http_key("desk"))
        assert len(turn.assistant_text) == 16_000_000
