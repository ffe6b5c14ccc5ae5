"""The OpenAI-compatible API without a conversation, with the official client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from tests.gateway import echo
from tests.http_gateway import http_gateway, http_key

from everthread.config.schema import GatewaySettings, LimitSettings
from everthread.domain.model import ToolCall
from everthread.domain.spend import Price
from everthread.ports.model import Usage
from everthread.testing.model_server.replies import End, Say
from everthread.testing.model_server.server import ModelServer


async def sent(model: ModelServer) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in model.requests]


WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def test_the_openai_client_asks_and_streams_and_nothing_is_stored(tmp_path: Path) -> None:
    script = lambda request: Say(echo(request).text, chunks=4, delay_s=0.01)  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        async with openai.AsyncOpenAI(
            base_url=fixture.url + "/v1", api_key=fixture.local_token, max_retries=0
        ) as client:
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
        assert await fixture.runtime.store.read(lambda uow: uow.sessions.recent(owner=None, limit=9)) == ()
        names = [one["id"] for one in (await fixture.ask("GET", "/v1/models")).json["data"]]
        assert names[:3] == ["everthread", "everthread/default", "stub/one"]


async def test_the_openai_client_sends_tools_and_their_results(tmp_path: Path) -> None:
    def script(request: Any) -> Say:
        if any(message.role == "tool" for message in request.messages):
            return Say("It rains in Porto.")
        return Say(calls=(ToolCall("call_1", "weather", '{"city":"Porto"}'),))

    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        async with openai.AsyncOpenAI(
            base_url=fixture.url + "/v1", api_key=fixture.local_token, max_retries=0
        ) as client:
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


async def test_a_model_call_stops_when_the_client_disconnects(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda _: Say("slow words", chunks=50, delay_s=0.1)) as model,
        http_gateway(tmp_path, model) as fixture,
    ):
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with fixture.http.post(fixture.url + "/v1/chat/completions", json=body, headers=fixture.auth) as response:
            await response.content.readline()
        async with asyncio.timeout(5):
            await model.left_early.wait()


async def test_spending_is_recorded_and_limited(tmp_path: Path) -> None:
    more: dict[str, Any] = {"limits": LimitSettings(spend_per_day=0.05), "prices": {"stub/one": Price(1.0, 2.0)}}
    script = lambda _: Say("Hello.", usage=Usage(10_000, 5_000))  # noqa: E731
    async with ModelServer(script) as model, http_gateway(tmp_path, model, **more) as fixture:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        assert (await fixture.ask("POST", "/v1/chat/completions", body)).status == 200
        (used,) = (await fixture.runtime.lifecycle.usage("me")).day
        assert (used.calls, used.input_tokens, used.output_tokens, used.reserved) == (1, 10_000, 5_000, 0.0)
        assert abs(used.amount - 0.02) < 1e-9
        await fixture.ask("POST", "/v1/chat/completions", body | {"stream": False})
        spent = await fixture.ask("POST", "/v1/chat/completions", body)
        assert (spent.status, spent.code) == (429, "insufficient_quota")


async def test_a_cut_off_answer_is_reported_in_the_stream(tmp_path: Path) -> None:
    cut = Say("one two three four", chunks=8, end=End.CUT)
    script = [cut, cut, Say("whole at last"), Say("A title")]
    async with ModelServer(script) as model, http_gateway(tmp_path, model) as fixture:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        alone = await fixture.ask("POST", "/v1/chat/completions", body)
        assert b"[DONE]" not in alone.body
        last = alone.body.decode().strip().split("\n\n")[-1].removeprefix("data: ")
        assert msgspec.json.decode(last)["error"]["code"] == "model_unavailable"
        talk = await fixture.ask("POST", "/v1/chat/completions", body, X_Session_Key="desk")
        assert b"begins again" in talk.body
        assert talk.body.endswith(b"data: [DONE]\n\n")
        (turn,) = await fixture.turns(key=http_key("desk"))
        assert turn.assistant_text == "whole at last"


@pytest.mark.parametrize("headers", [{}, {"X_Session_Key": "desk"}], ids=["stateless", "conversation"])
async def test_the_spending_limit_of_guests_is_per_person(tmp_path: Path, headers: dict[str, str]) -> None:
    gateway = GatewaySettings(spend_per_day=0.05)
    script = lambda _: Say("Hello.", usage=Usage(10_000, 15_000))  # noqa: E731
    more: dict[str, Any] = {"prices": {"stub/one": Price(1.0, 2.0)}}
    async with ModelServer(script) as model, http_gateway(tmp_path, model, gateway=gateway, **more) as fixture:
        anna, ben, me = await fixture.token("anna"), await fixture.token("ben"), await fixture.token("me")
        assert (await fixture.ask("POST", CHAT, BODY, anna, **headers)).status == 200
        spent = await fixture.ask("POST", CHAT, BODY, anna, **headers)
        assert (spent.status, spent.code) == (429, "insufficient_quota")
        assert (await fixture.ask("POST", CHAT, BODY, ben, **headers)).status == 200
        for _ in range(3):
            assert (await fixture.ask("POST", CHAT, BODY, me, **headers)).status == 200


async def test_a_stopping_gateway_starts_no_model_call(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, http_gateway(tmp_path, model) as fixture:
        fixture.gateway.draining = True
        refused = await fixture.ask("POST", CHAT, BODY)
        assert (refused.status, refused.code) == (503, "stopping")
        assert refused.headers["Retry-After"]
