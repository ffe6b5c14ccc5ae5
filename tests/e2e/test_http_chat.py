"""Talking to the agent over HTTP, as a client of models does, with the official client among them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from tests.http_gateway import http_gateway
from tests.runtime import until

from everthread.config.settings import GatewaySettings, LimitSettings, Price
from everthread.domain.model import SessionKey, ToolCall, TurnStatus
from everthread.ports.model import Usage
from everthread.testing.model_server.replies import End, Fail, Raw, Say
from everthread.testing.model_server.server import ModelServer

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1]}", chunks=4, delay_s=0.01)


def key(name: str, *, user: str | None = None) -> SessionKey:
    return SessionKey.parse(f"agent:main:http:dm:{name}" + (f"::{user}" if user else ""))


async def test_the_official_client_asks_and_streams_without_leaving_anything(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        async with openai.AsyncOpenAI(base_url=there.url + "/v1", api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="everthread",
                messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}],
            )
            assert answer.choices[0].message.content == "You said hi"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.model == "stub/one"
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 5)
            stream = await client.chat.completions.create(
                model="stub/other",
                messages=[{"role": "user", "content": "hello there"}],
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
        words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
        assert "".join(words) == "You said hello there"
        assert len(words) > 1
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.total_tokens == 15
        first, second = await sent(model)
        assert [m["content"] for m in first["messages"]] == ["Be kind.", "hi"]
        assert second["model"] == "other"
        assert await there.runtime.store.read(lambda uow: uow.sessions.recent(owner=None, limit=9)) == ()
        names = [one["id"] for one in (await there.ask("GET", "/v1/models")).json["data"]]
        assert names[:3] == ["everthread", "everthread/default", "stub/one"]


async def sent(model: ModelServer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in model.requests]


async def test_the_official_client_gives_tools_and_their_results(tmp_path: Path) -> None:
    def script(request: Any) -> Say:
        if any(message.role == "tool" for message in request.messages):
            return Say("It rains in Porto.")
        return Say(calls=(ToolCall("call_1", "weather", '{"city":"Porto"}'),))

    async with ModelServer(script) as model, http_gateway(tmp_path, model) as there:
        async with openai.AsyncOpenAI(base_url=there.url + "/v1", api_key="none", max_retries=0) as client:
            asked: list[Any] = [{"role": "user", "content": "How is Porto?"}]
            for stream in (False, True):
                if stream:
                    async with client.chat.completions.stream(model="everthread", messages=asked, tools=[WEATHER]) as s:  # type: ignore[list-item]
                        message = (await s.get_final_completion()).choices[0].message
                else:
                    done = await client.chat.completions.create(model="everthread", messages=asked, tools=[WEATHER])  # type: ignore[list-item]
                    assert done.choices[0].finish_reason == "tool_calls"
                    message = done.choices[0].message
                assert message.tool_calls is not None
                call = message.tool_calls[0]
                assert call.type == "function"
                assert (call.id, call.function.name, call.function.arguments) == (
                    "call_1",
                    "weather",
                    '{"city":"Porto"}',
                )
            result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
            again = [*asked, message.model_dump(exclude_none=True, include={"role", "tool_calls"}), result]
            answer = await client.chat.completions.create(model="everthread", messages=again, tools=[WEATHER])  # type: ignore[list-item]
            assert answer.choices[0].message.content == "It rains in Porto."
        assert [m["role"] for m in (await sent(model))[-1]["messages"]] == ["user", "assistant", "tool"]
        assert (await sent(model))[-1]["tools"][0]["function"]["name"] == "weather"


async def test_a_conversation_goes_on_by_its_key_and_by_its_id(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        async with openai.AsyncOpenAI(base_url=there.url + "/v1", api_key="none", max_retries=0) as client:
            raw = await client.chat.completions.with_raw_response.create(
                model="everthread",
                messages=[{"role": "user", "content": "ignored"}, {"role": "user", "content": "one"}],
                extra_headers={"X-Session-Key": "desk"},
            )
        session_id = raw.headers["X-Session-Id"]
        assert (raw.headers["X-Session-Key"], (raw.parse()).choices[0].message.content) == ("desk", "You said one")
        by_id = await there.say("two", X_Session_Id=session_id)
        assert (by_id.status, by_id.headers["X-Session-Id"], by_id.text) == (200, session_id, "You said two")
        by_key = await there.say("three", X_Session_Key="desk")
        assert by_key.headers["X-Session-Id"] == session_id
        turns = await there.turns(session_id)
        assert [turn.user_text for turn in turns] == ["one", "two", "three"]
        assert by_key.headers["X-Turn-Id"] == turns[-1].turn_id
        assert by_key.json["usage"]["total_tokens"] == 15


async def test_a_stream_ends_after_the_commit(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        answer = await there.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk")
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        events = answer.body.decode().strip().split("\n\n")
        assert events[-1] == "data: [DONE]"
        (turn,) = await there.turns(answer.headers["X-Session-Id"])
        assert (turn.turn_id, turn.assistant_text) == (answer.headers["X-Turn-Id"], "You said hello")


async def test_words_do_not_wait_behind_what_a_client_is_not_told(tmp_path: Path) -> None:
    def piece(**delta: str) -> bytes:
        return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": delta}]}) + b"\n\n"

    thinks = piece(content="words") + piece(reasoning_content="hm")
    end = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    raw = Raw((thinks, piece(content=" more") + end), delay_s=1.0)
    async with ModelServer(lambda _: raw) as model, http_gateway(tmp_path, model) as there:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        sent = there.http.post(there.url + "/v1/chat/completions", json=body, headers={"X-Session-Key": "desk"})
        async with sent as response:
            read = b""
            while b"words" not in read:
                read += await response.content.readany()
            assert b"more" not in read, "they were kept until the next ones came"
            assert b"more" in await response.read()


async def test_words_are_streamed_as_they_are_written(tmp_path: Path) -> None:
    said = "words that take their time"
    async with ModelServer(lambda _: Say(said, chunks=5, delay_s=0.3)) as model, http_gateway(tmp_path, model) as there:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        sent = there.http.post(there.url + "/v1/chat/completions", json=body, headers={"X-Session-Key": "desk"})
        async with sent as response:
            read = b""
            while b"words" not in read:
                read += await response.content.readany()
            assert there.gateway.worker.running == 1
            read += await response.read()
        pieces = [line.removeprefix(b"data: ") for line in read.strip().split(b"\n\n")]
        deltas = [choice["delta"] for piece in pieces[:-1] for choice in msgspec.json.decode(piece)["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == said


async def test_whoever_leaves_does_not_stop_the_turn(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow words", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "hello"}], "stream": stream}
            asking = asyncio.ensure_future(
                there.ask("POST", "/v1/chat/completions", body, X_Session_Key=f"desk{stream}")
            )
            await until(lambda: there.gateway.worker.running == 1)
            asking.cancel()
            await asyncio.wait({asking})
            await there.rest()
            (turn,) = await there.turns(key=key(f"desk{stream}"))
            assert (turn.status, turn.assistant_text) == (TurnStatus.DONE, "slow words")
        await until(lambda: not there.gateway.worker.subscribed, "nobody is told any more")


async def test_whoever_leaves_a_stateless_answer_stops_the_model(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow words", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with there.http.post(there.url + "/v1/chat/completions", json=body) as response:
            await response.content.readline()
        async with asyncio.timeout(5):
            await model.left_early.wait()


async def test_commands_act_as_on_any_platform(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        first = await there.say("hello", X_Session_Key="desk")
        new = await there.say("/new Trip to Porto", X_Session_Key="desk")
        assert "Trip to Porto" in new.text
        assert new.headers["X-Session-Id"] != first.headers["X-Session-Id"]
        second = await there.say("hi", X_Session_Key="desk")
        assert second.headers["X-Session-Id"] == new.headers["X-Session-Id"]
        assert "Did you mean /new" in (await there.say("/nwe", X_Session_Key="desk")).text
        export = await there.say("/export", X_Session_Key="desk")
        assert "You said hi" in export.text
        assert "queue" in (await there.say("/queue later", X_Session_Key="desk")).text.lower()
        await there.rest()
        assert [turn.user_text for turn in await there.turns(key=key("desk"))] == ["hi", "later"]


async def test_a_message_behind_a_new_conversation_is_answered_with_409(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        running = asyncio.ensure_future(there.say("m1", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1)
        old = await there.session(key("desk"))
        waiting = asyncio.ensure_future(there.say("m2", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.subscribed == 2)
        new = await there.say("/new", X_Session_Key="desk")
        for answer in (await waiting, await running):
            assert (answer.status, answer.code) == (409, "set_aside")
            assert answer.headers["X-Session-Id"] == old.id != new.headers["X-Session-Id"]


async def test_what_is_sent_twice_under_one_key_is_taken_once(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=5, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        asked = [asyncio.ensure_future(there.say("hello", X_Session_Key="desk", Idempotency_Key="a")) for _ in range(3)]
        assert [(await one).text for one in asked] == ["slow"] * 3
        late = await there.say("hello", X_Session_Key="desk", Idempotency_Key="a")
        (turn,) = await there.turns(key=key("desk"))
        assert (late.text, late.headers["X-Turn-Id"]) == ("slow", turn.turn_id)
        other = await there.say("hello", X_Session_Key="elsewhere", Idempotency_Key="a")
        assert (other.status, other.code) == (409, "idempotency_key_used")
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        again = await there.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk", Idempotency_Key="a")
        assert again.body.endswith(b"data: [DONE]\n\n")
        assert len(await there.turns(key=key("desk"))) == 1


async def test_two_people_may_use_the_same_names(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        anna, ben = await there.token("anna"), await there.token("ben")
        first = await there.say("I am Anna", anna, X_Session_Key="desk", Idempotency_Key="1")
        second = await there.say("I am Ben", ben, X_Session_Key="desk", Idempotency_Key="1")
        assert (first.text, second.text) == ("You said I am Anna", "You said I am Ben")
        assert first.headers["X-Session-Id"] != second.headers["X-Session-Id"]
        assert (await there.say("more", anna, X_Session_Key="desk")).headers["X-Session-Id"] == first.headers[
            "X-Session-Id"
        ]
        theirs = await there.say("let me in", ben, X_Session_Id=first.headers["X-Session-Id"])
        unknown = await there.say("let me in", ben, X_Session_Id="01NOTHINGLIKETHAT")
        assert (theirs.status, theirs.body) == (404, unknown.body)
        assert [turn.user_text for turn in await there.turns(first.headers["X-Session-Id"])] == ["I am Anna", "more"]
        model_command = await there.say("/model stub/two", ben, X_Session_Key="desk")
        assert "admins only" in model_command.text


async def test_one_person_may_not_say_too_much_at_once_and_may_always_stop(tmp_path: Path) -> None:
    gateway = GatewaySettings(messages_per_minute=2)
    async with ModelServer(echo) as model, http_gateway(tmp_path, model, gateway=gateway) as there:
        anna, ben = await there.token("anna"), await there.token("ben")
        for name in ("one", "two"):
            assert (await there.say("hello", anna, X_Session_Key=name, Idempotency_Key=name)).status == 200
        for name in ("one", "three"):
            much = await there.say("hello", anna, X_Session_Key=name)
            assert (much.status, much.code) == (429, "too_many")
        assert (await there.say("/stop", anna, X_Session_Key="one")).status == 200
        assert (await there.say("hello", ben, X_Session_Key="one")).status == 200
        assert len(await there.turns(key=key("one", user="anna"))) == 1


async def test_what_must_not_be_stored_is_not(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        answer = await there.say("/pair ABCD2345", X_Session_Key="desk")
        assert "everthread pairing approve" in answer.text
        assert "/undo" in (await there.say("/help", X_Session_Key="desk")).text
        assert await there.runtime.store.read(lambda uow: uow.inbox.get(1)) is None


async def test_spending_is_settled_and_its_limit_holds(tmp_path: Path) -> None:
    more: dict[str, Any] = {"limits": LimitSettings(spend_per_day=0.05), "prices": {"stub/one": Price(1.0, 2.0)}}
    script = lambda _: Say("Hello.", usage=Usage(10_000, 5_000))  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model, **more) as there:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        assert (await there.ask("POST", "/v1/chat/completions", body)).status == 200
        (used,) = (await there.runtime.lifecycle.usage("me")).day
        assert (used.calls, used.input_tokens, used.output_tokens, used.reserved) == (1, 10_000, 5_000, 0.0)
        assert abs(used.amount - 0.02) < 1e-9
        await there.ask("POST", "/v1/chat/completions", body | {"stream": False})
        spent = await there.ask("POST", "/v1/chat/completions", body)
        assert (spent.status, spent.code) == (429, "insufficient_quota")


async def test_what_a_model_can_not_do_is_said_with_its_status(tmp_path: Path) -> None:
    script = [Fail(401, "wrong key"), Fail(400, "no"), Fail(401, "wrong key sk-secret")]
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as there:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await there.ask("POST", "/v1/chat/completions", body)
        assert (answer.status, answer.code) == (502, "model_unauthorized")
        refused = await there.ask("POST", "/v1/chat/completions", body | {"stream": True})
        assert (refused.status, refused.code) == (400, "refused_by_model")
        in_talk = await there.say("hi", X_Session_Key="desk")
        assert (in_talk.status, in_talk.code) == (502, "model_unauthorized")
        assert b"sk-secret" not in in_talk.body
        assert [turn.user_text for turn in await there.turns(in_talk.headers["X-Session-Id"])] == ["hi"]
        assert (
            await there.ask("POST", "/v1/chat/completions", body | {"model": "nobody/knows"})
        ).code == "model_not_found"


async def test_an_answer_that_is_cut_off_says_so_where_it_was_passed_on(tmp_path: Path) -> None:
    cut = Say("one two three four", chunks=8, end=End.CUT)
    script = [cut, cut, Say("whole at last"), Say("A title")]
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as there:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        alone = await there.ask("POST", "/v1/chat/completions", body)
        assert b"[DONE]" not in alone.body
        last = alone.body.decode().strip().split("\n\n")[-1].removeprefix("data: ")
        assert msgspec.json.decode(last)["error"]["code"] == "model_unavailable"
        talk = await there.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk")
        assert b"begins again" in talk.body
        assert talk.body.endswith(b"data: [DONE]\n\n")
        (turn,) = await there.turns(key=key("desk"))
        assert turn.assistant_text == "whole at last"


async def test_an_interface_that_is_stopped_first_lets_answers_end(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow", chunks=4, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as there,
    ):
        waiting = asyncio.ensure_future(there.say("hello", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1)
        await there.web.stop()
        assert (await waiting).text == "slow"
        with pytest.raises(aiohttp.ClientConnectionError):
            await there.ask("GET", "/health")


async def test_what_would_change_the_meaning_is_refused_and_the_rest_ignored(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as there:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
        for more in (
            {"n": 2},
            {"stop": ["x"]},
            {"response_format": {"type": "json_object"}},
            {"logprobs": True},
            {"tool_choice": "required"},
            {"functions": [{}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            {"messages": [{"role": "system", "content": "hi"}]},
            {"messages": []},
            {"messages": "hi"},
        ):
            assert (await there.ask("POST", "/v1/chat/completions", body | more)).status == 400, more
        harmless = {"temperature": 0.1, "user": "x", "seed": 3, "n": 1, "metadata": {"a": "b"}, "max_tokens": 7}
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        answer = await there.ask("POST", "/v1/chat/completions", body | harmless | {"messages": parts})
        assert answer.text == "You said ab"
        assert (await sent(model))[-1]["max_tokens"] == 7
        tools = await there.ask("POST", "/v1/chat/completions", body | {"tools": [WEATHER]}, X_Session_Key="desk")
        assert tools.status == 400
        other = await there.ask("POST", "/v1/chat/completions", body | {"model": "stub/two"}, X_Session_Key="desk")
        assert (other.status, other.code) == (400, "model_not_chosen")
        same = await there.ask("POST", "/v1/chat/completions", body | {"model": "stub/one"}, X_Session_Key="desk")
        assert same.status == 200


async def test_a_message_of_a_megabyte_is_answered(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Long.")) as model, http_gateway(tmp_path, model) as there:
        text = "word " * 200_000
        answer = await there.say(text, X_Session_Key="desk")
        assert answer.text == "Long."
        (turn,) = await there.turns(answer.headers["X-Session-Id"])
        assert len(turn.user_text) == len(text)


async def test_a_gateway_that_stops_takes_nothing_and_tells_whoever_waits(tmp_path: Path) -> None:
    script = lambda _: Say("very slow", chunks=100, delay_s=0.1)  # noqa: E731
    async with (
        ModelServer(script) as model,
        http_gateway(tmp_path, model, gateway=GatewaySettings(drain_s=0.2)) as there,
    ):
        waiting = asyncio.ensure_future(there.say("hello", X_Session_Key="desk"))
        await until(lambda: there.gateway.worker.running == 1)
        stopping = asyncio.ensure_future(there.gateway.stop(0.3))
        await until(lambda: there.gateway.draining)
        assert (await there.ask("GET", "/ready")).status == 503
        assert (await there.ask("GET", "/health")).status == 200
        refused = await there.say("more", X_Session_Key="desk")
        assert (refused.status, refused.code) == (503, "stopping")
        await stopping
        await there.web.stop()
        answer = await waiting
        assert (answer.status, answer.code) == (503, "stopping")
