"""Differences between servers of the Chat Completions API, translated to the same answers and errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everthread.adapters.models.openai_compat import OpenAICompat
from everthread.domain.errors import (
    BadConfig,
    ContextTooLong,
    ModelError,
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
    ModelUnknown,
    ModelWithoutTools,
)
from everthread.domain.model import Message, Role, ToolCall
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, ToolSchema, Traits, Usage
from everthread.testing.model_server.replies import Fail
from everthread.testing.model_server.server import ModelServer, Raw, Reply, Say

HELLO = (Message(Role.USER, "hello"),)


async def ask(*replies: Reply, tail: tuple[Message, ...] = HELLO, recall: str = "") -> tuple[Answer, dict[str, Any]]:
    """Return the answer to the last reply and the request that was sent for it."""
    async with ModelServer(replies) as server:
        client = OpenAICompat(server.base_url, "key", idle_s=10.0)
        try:
            for _ in replies:
                *_, answer = [p async for p in client.stream(Request(client.head(Prompt("m", "s")), b"", tail, recall))]
        finally:
            await client.aclose()
        assert isinstance(answer, Answer)
        return answer, json.loads(server.requests[-1])


@asynccontextmanager
async def raw_server(status: int, body: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def stream(*chunks: object, done: bool = True) -> Raw:
    return Raw(tuple(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + (b"data: [DONE]\n\n",) * done)


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments: object, name: str | None = None, **fields: object) -> dict[str, object]:
    return delta(tool_calls=[fields | {"function": {"name": name, "arguments": arguments}}])


# --- Calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([call('{"a"', "f", index=0, id="1"), call(":1}", index=0)], id="OpenAI"),
        pytest.param([call('{"a"', "f", index=0, id="1"), call(":1}", "", index=0, id="")], id="empty id"),
        pytest.param([call('{"a"', "f", index=0, id="1"), call(":1}", "f", index=0, id="1")], id="all repeated"),
        pytest.param([call('{"a":1}', "f", index=0, id="1")], id="at once"),
        pytest.param([call('{"a"', "f", id="1"), call(":1}")], id="no index"),
        pytest.param([call({"a": 1}, "f", index=0, id="1")], id="object"),
        pytest.param([call(None, "f", index=0, id="1"), call('{"a":1}', index=0)], id="null first"),
        pytest.param([call(None, "f", index=3, id="1"), call('{"a":1}', index=3)], id="any index"),
    ],
)
async def test_a_call_is_assembled_from_its_parts(chunks: list[dict[str, object]]) -> None:
    answer, _ = await ask(stream(*chunks, delta("tool_calls")))
    assert answer.message.tool_calls == (ToolCall("1", "f", '{"a":1}'),)
    assert answer.finish is Finish.TOOLS


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([call("{}", "f", index=0, id="1"), call("{}", "g", index=0, id="2")], id="index always 0"),
        pytest.param([call("{}", "f", id="1"), call("{}", "g", id="2")], id="no index"),
        pytest.param(
            [call("{", "f", index=0, id="1"), call("{}", "g", index=1, id="2"), call("}", index=0)], id="mixed"
        ),
    ],
)
async def test_two_calls_stay_separate(chunks: list[dict[str, object]]) -> None:
    answer, _ = await ask(stream(*chunks, delta("tool_calls")))
    assert answer.message.tool_calls == (ToolCall("1", "f", "{}"), ToolCall("2", "g", "{}"))


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["index always 0", "no index"])
async def test_calls_without_ids_get_generated_ones(index: dict[str, int]) -> None:
    answer, _ = await ask(stream(call("{}", "f", **index), call('{"a":1}', "f", **index), delta("stop")))
    assert answer.message.tool_calls == (ToolCall("call_0", "f", "{}"), ToolCall("call_1", "f", '{"a":1}'))
    assert answer.finish is Finish.TOOLS


async def test_generated_ids_are_unique_in_a_turn() -> None:
    earlier = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("call_0", "f", "{}"), ToolCall("call_1", "f", "{}")))
    results = (Message(Role.TOOL, "1", tool_call_id="call_0"), Message(Role.TOOL, "2", tool_call_id="call_1"))
    answer, _ = await ask(stream(call("{}", "f"), delta("tool_calls")), tail=(*HELLO, earlier, *results))
    assert [call.id for call in answer.message.tool_calls] == ["call_2"]


async def test_a_finish_reason_of_tool_calls_without_calls_is_a_stop() -> None:
    answer, _ = await ask(stream(delta(content="Hm."), delta("tool_calls")))
    assert (answer.message.content, answer.finish) == ("Hm.", Finish.STOP)


# --- Answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_read_from_both_field_names(name: str) -> None:
    answer, _ = await ask(stream(delta(**{name: "Hm. "}), delta(**{name: "Yes."}), delta("stop", content="Yes!")))
    assert answer.message == Message(Role.ASSISTANT, "Yes!", reasoning="Hm. Yes.")


async def test_only_fields_that_the_endpoint_expects_are_sent_back() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    signed = call | {"extra_content": {"vertex": {"thought_signature": "abc"}}}
    results = (Message(Role.TOOL, "sky", (), "c1", "f"),)
    for pieces, extra in (
        ([delta(reasoning="Hm."), delta("tool_calls", tool_calls=[call])], {}),
        ([delta(reasoning_content="Hm."), delta("tool_calls", tool_calls=[call])], {"reasoning_content": "Hm."}),
        (
            [delta(extra_content={"google": {"x": 1}}), delta("tool_calls", tool_calls=[call])],
            {"extra_content": {"google": {"x": 1}}},
        ),
    ):
        answer, _ = await ask(stream(*pieces))
        _, sent = await ask(Say("Yes"), tail=(*HELLO, answer.message, *results))
        given = {
            name: value for name, value in sent["messages"][2].items() if name not in ("role", "content", "tool_calls")
        }
        assert given == extra
    answer, _ = await ask(stream(delta(tool_calls=[signed]), delta("tool_calls", tool_calls=[call])))
    _, sent = await ask(Say("Yes"), tail=(*HELLO, answer.message, *results))
    assert sent["messages"][2]["tool_calls"][0]["extra_content"] == {"vertex": {"thought_signature": "abc"}}


async def test_a_signature_stays_with_its_call_when_others_are_cut_off() -> None:
    def call(index: int, arguments: str) -> dict[str, object]:
        extra = {"google": {"thought_signature": f"s{index}"}}
        return {
            "index": index,
            "id": f"c{index}",
            "function": {"name": "f", "arguments": arguments},
            "extra_content": extra,
        }

    calls = [call(0, '{"cut'), call(1, "{}")]
    answer, _ = await ask(stream(delta("length", tool_calls=calls)))
    results = (Message(Role.TOOL, "sky", (), "c1", "f"),)
    _, sent = await ask(Say("Yes"), tail=(*HELLO, answer.message, *results))
    [only] = sent["messages"][2]["tool_calls"]
    assert (only["id"], only["extra_content"]) == ("c1", {"google": {"thought_signature": "s1"}})


async def test_reasoning_under_both_names_is_taken_once() -> None:
    answer, _ = await ask(stream(delta(reasoning="Hm.", reasoning_content="Hm."), delta("stop", content="Yes")))
    assert answer.message.reasoning == "Hm."


async def test_null_fields_are_ignored() -> None:
    null = dict.fromkeys(("content", "refusal", "reasoning", "reasoning_content", "tool_calls", "role", "audio"))
    answer, _ = await ask(
        stream(
            {"choices": None, "usage": None, "error": None, "id": None},
            {"choices": [{"delta": None, "finish_reason": None}]},
            delta(**null),
            delta(content="Yes", tool_calls=[]),
            delta(tool_calls=[{"index": 0, "id": "1", "function": None}]),
            delta("tool_calls", tool_calls=[{"index": None, "id": None, "function": {"name": "f", "arguments": None}}]),
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": None, "prompt_tokens_details": None}},
        )
    )
    assert answer.message.content == "Yes"
    assert answer.usage == Usage(3)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("eos", Finish.STOP),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.REFUSED),
    ],
)
async def test_finish_reasons_are_translated(reason: str, finish: Finish) -> None:
    assert (await ask(stream(delta(content="Yes"), delta(reason))))[0].finish is finish


async def test_a_refusal_is_read_from_its_own_field() -> None:
    answer, _ = await ask(stream(delta(refusal="I "), delta(refusal="can't."), delta("stop")))
    assert (answer.message.content, answer.finish) == ("I can't.", Finish.REFUSED)


async def test_usage_is_read_in_every_format() -> None:
    for usage, found in [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(9, 2, 8)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}, Usage(9, 2, 8)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "cost": 0.0125}, Usage(9, 2, cost=0.0125)),
        ({"prompt_tokens": 9, "completion_tokens": 2, "cost": 1}, Usage(9, 2, cost=1.0)),
    ]:
        answer, _ = await ask(stream(delta(content="Yes"), delta("stop"), {"choices": [], "usage": usage}))
        assert answer.usage == found


async def test_an_answer_ends_with_its_finish_reason_even_without_done() -> None:
    answer, _ = await ask(stream(delta(content="Yes"), delta("stop"), done=False))
    assert answer.message.content == "Yes"


async def test_an_answer_ends_with_done_even_without_a_finish_reason() -> None:
    answer, _ = await ask(stream(delta(content="Yes")))
    assert (answer.message.content, answer.finish) == ("Yes", Finish.STOP)


async def test_a_response_without_streaming_is_read() -> None:
    choice = {"message": {"content": "Yes", "tool_calls": None}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 4}}).encode()
    answer, _ = await ask(Raw((body[:20], body[20:]), content_type="application/json; charset=utf-8"))
    assert (answer.message.content, answer.usage) == ("Yes", Usage(4))


async def test_comments_in_a_stream_are_ignored() -> None:
    raw = stream(delta(content="Yes"), delta("stop"))
    answer, _ = await ask(Raw((b": OPENROUTER PROCESSING\n\n", *raw.pieces)))
    assert answer.message.content == "Yes"


# --- Errors inside a stream ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Provider returned error", "code": 502}, ModelUnavailable),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, ModelUnavailable),
        ({"message": "boom", "type": "server_error", "code": None}, ModelUnavailable),
        ("overloaded", ModelUnavailable),
        ({"message": "too long", "code": "context_length_exceeded"}, ContextTooLong),
        ({"message": "no such", "code": "model_not_found"}, ModelUnknown),
        ({"message": "m does not support tools", "code": 400}, ModelWithoutTools),
        ({"message": "bad", "type": "invalid_request_error"}, ModelRefused),
        (
            {"message": "Provider returned error", "code": 400, "metadata": {"raw": "prompt is too long"}},
            ContextTooLong,
        ),
    ],
    ids=str,
)
async def test_an_error_inside_a_stream_is_translated(error: object, kind: type[ModelError]) -> None:
    for chunk in ({"error": error}, {"error": error} | delta("error", content="")):
        with pytest.raises(ModelError) as caught:
            await ask(stream(delta(content="Ye"), chunk))
        assert type(caught.value) is kind


async def test_a_finish_reason_of_error_is_a_failure() -> None:
    with pytest.raises(ModelUnavailable):
        await ask(stream(delta(content="Ye"), delta("error")))


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (
            b'[{"error": {"code": 400, "message": "The input token count (9) exceeds the maximum"}}]',
            ContextTooLong,
            "9",
        ),
        (b'{"detail": "m not ready"}', ModelUnavailable, "m not ready"),
        (b'{"error": "slow down"}', ModelUnavailable, "slow down"),
        (b"plain words", ModelUnavailable, "plain words"),
        (b"<html><h1>502", ModelUnavailable, "answered 503"),
        (b"\xff\xfe", ModelUnavailable, "answered 503"),
        (b"", ModelUnavailable, "answered 503"),
    ],
)
async def test_error_bodies_of_every_format_are_read(body: bytes, kind: type[ModelError], said: str) -> None:
    status = 400 if kind is ContextTooLong else 503
    async with raw_server(status, body) as base_url:
        client = OpenAICompat(base_url, "key")
        with pytest.raises(kind, match=said):
            async for _ in client.stream(Request(client.head(Prompt("m", "")), b"", HELLO)):
                pass
        await client.aclose()


# --- Requests ------------------------------------------------------------------------------------------------------


async def test_a_request_has_the_format_of_the_endpoint() -> None:
    calls = (ToolCall("c1", "look", '{"where": "up"}'),)
    tail = (*HELLO, Message(Role.ASSISTANT, "", calls, reasoning="secret"), Message(Role.TOOL, "sky", (), "c1", "look"))
    _, sent = await ask(Say("Yes"), tail=tail, recall="what I know")
    assert list(sent) == ["model", "stream", "stream_options", "messages", "max_tokens"]
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hello\n\nwhat I know"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "function": {"name": "look", "arguments": '{"where": "up"}'}, "type": "function"}
            ],
        },
        {"role": "tool", "content": "sky", "tool_call_id": "c1"},
    ]


def test_tools_precede_the_messages() -> None:
    head = OpenAICompat("http://host/v1").head(Prompt("m", "s", (ToolSchema("f", "Does it.", {"type": "object"}),)))
    sent = json.loads(head + b"{}]}")
    assert list(sent) == ["model", "stream", "stream_options", "tools", "messages"]
    function = {"name": "f", "description": "Does it.", "parameters": {"type": "object"}}
    assert sent["tools"] == [{"type": "function", "function": function}]


def test_the_key_is_in_no_repr() -> None:
    client = OpenAICompat("http://host/v1", "sk-secret")
    assert "sk-secret" not in f"{client!r}{client._http!r}{client._http._endpoint!r}"  # noqa: SLF001 - must not contain the key


async def test_a_secret_in_a_header_is_redacted_from_error_messages() -> None:
    secret = "gw-0123456789abcdef"
    refusal = Fail(403, f"the gateway does not know {secret} nor Basic {secret}, version one")
    async with ModelServer([refusal]) as server:
        client = OpenAICompat(server.base_url, "sk-0", headers={"X-Gateway": f"Basic {secret}", "X-Version": "one"})
        with pytest.raises(ModelUnauthorized) as caught:
            async for _ in client.stream(Request(client.head(Prompt("m", "")), b"", HELLO)):
                pass
        await client.aclose()
    assert "does not know ***" in str(caught.value)
    assert "version one" in str(caught.value)
    assert secret not in f"{caught.value!r}{client._http._endpoint!r}"  # noqa: SLF001 - must not contain the key


@pytest.mark.parametrize("url", ["", "host/v1", "ftp://host/", "http://", "http://host:port/", "http://[::1/v1"])
def test_an_invalid_base_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadConfig, match="base URL"):
        OpenAICompat(url)


def test_a_key_of_two_lines_is_refused_at_once() -> None:
    with pytest.raises(BadConfig, match="MY_KEY") as caught:
        OpenAICompat("http://host/v1", "sk-one\nsk-two", key_name="MY_KEY")
    assert "sk-" not in str(caught.value)


def test_traits_are_declared() -> None:
    small = Traits(tools=False, context_tokens=4096, small=True)
    assert OpenAICompat("http://host/v1", traits=small).traits("tiny") == small
    assert OpenAICompat("http://host/v1").traits("tiny") == Traits()


async def test_deltas_are_passed_on_as_they_arrive() -> None:
    async with ModelServer([Say("one two", chunks=7, delay_s=0.05)]) as server:
        client = OpenAICompat(server.base_url)
        stream = client.stream(Request(client.head(Prompt("m", "")), b"", HELLO))
        assert await anext(stream) == Delta("o")
        await stream.aclose()
        await client.aclose()


async def test_a_connection_closed_by_the_server_is_reopened_at_once() -> None:
    """The server of llama.cpp announces keep-alive and closes the connection."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        served += 1
        answer = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: keep-alive\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = OpenAICompat(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        request = Request(client.head(Prompt("m", "s")), b"", (Message(Role.USER, "hello"),))
        for pause_s in (0.0, 0.1, 0.0):
            await asyncio.sleep(pause_s)
            parts = [part async for part in client.stream(request)]
            assert isinstance(parts[-1], Answer)
        await client.aclose()
        await asyncio.sleep(0.1)
    assert served == 3
