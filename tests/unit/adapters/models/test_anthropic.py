"""Requests and answers of Anthropic's Messages API."""

import json
from typing import Any

import pytest

from everthread.adapters.models.anthropic import Anthropic
from everthread.domain.errors import (
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from everthread.domain.model import Message, Role, ToolCall
from everthread.ports.model import Answer, Finish, Prompt, Request, ToolSchema, Traits, Usage
from everthread.testing.model_server.server import ModelServer, Raw, Reply, Say

HELLO = (Message(Role.USER, "hello"),)
MARK = {"type": "ephemeral"}
PROMPT = Prompt("m", "s", (ToolSchema("f", "One.", {"type": "object"}), ToolSchema("g", "Two.", {})))


async def ask(reply: Reply, tail: tuple[Message, ...] = HELLO, recall: str = "") -> tuple[Answer, dict[str, Any]]:
    """Return the answer and the request that was sent."""
    async with ModelServer([reply]) as server:
        client = Anthropic(server.base_url, "key", idle_s=10.0)
        try:
            *_, answer = [p async for p in client.stream(Request(client.head(PROMPT), b"", tail, recall, 99))]
        finally:
            await client.aclose()
        assert isinstance(answer, Answer)
        return answer, json.loads(server.requests[-1])


def stream(*events: dict[str, object]) -> Raw:
    return Raw(tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events))


def event(kind: str, **fields: object) -> dict[str, object]:
    return {"type": kind} | fields


def text(words: str) -> dict[str, object]:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": words})


START = event("message_start", message={"id": "1", "usage": {"input_tokens": 5, "output_tokens": 1}})
STOP = event("message_stop")


# --- Requests ------------------------------------------------------------------------------------------------------


async def test_a_request_marks_the_parts_that_can_be_cached() -> None:
    calls = (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "none"))
    results = (Message(Role.TOOL, "sky", (), "c1", "f"), Message(Role.TOOL, "", (), "c2", "g"))
    said = Message(Role.ASSISTANT, "I look.", calls, reasoning="secret")
    _, sent = await ask(Say("Yes"), (*HELLO, said, *results), "what I know")
    assert list(sent) == ["model", "stream", "tools", "system", "messages", "max_tokens"]
    assert sent["max_tokens"] == 99
    assert sent["system"] == [{"type": "text", "text": "s", "cache_control": MARK}]
    assert sent["tools"] == [
        {"name": "f", "description": "One.", "input_schema": {"type": "object"}},
        {
            "name": "g",
            "description": "Two.",
            "input_schema": {"type": "object", "properties": {}},
            "cache_control": MARK,
        },
    ]
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hello", "cache_control": MARK},
                {"type": "text", "text": "what I know"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sky"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "", "cache_control": MARK},
            ],
        },
    ]


def test_history_has_no_cache_marks_and_no_empty_texts() -> None:
    messages = (
        *HELLO,
        Message(Role.SYSTEM, "a summary"),
        Message(Role.ASSISTANT, " \n"),
        Message(Role.ASSISTANT, "", (ToolCall("c1", "f", "{}"),)),
        Message(Role.TOOL, "done", (), "c1"),
        Message(Role.USER, "and now?"),
    )
    assert json.loads(b"[" + Anthropic().encode(messages) + b"]") == [
        {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "a summary"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "done"},
                {"type": "text", "text": "and now?"},
            ],
        },
    ]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_base_url_may_name_the_version(suffix: str) -> None:
    async with ModelServer([Say("Yes")], key="key") as server:
        client = Anthropic(server.base_url.removesuffix("/v1") + suffix, "key\n", headers={"x-more": "1"})
        assert [piece async for piece in client.stream(Request(client.head(PROMPT), b"", HELLO))]
        await client.aclose()
        [received] = server.received
        assert received.path == "/v1/messages"
        assert received.headers["x-api-key"] == "key"
        assert received.headers["anthropic-version"] == "2023-06-01"
        assert received.headers["x-more"] == "1"


def test_traits_are_declared() -> None:
    assert Anthropic(traits=Traits(context_tokens=5)).traits("m").context_tokens == 5
    assert Anthropic().traits("m").context_tokens == 200_000


# --- Answers -------------------------------------------------------------------------------------------------------


async def test_the_last_reported_usage_counts_and_includes_cached_tokens() -> None:
    first = {"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
    answer, _ = await ask(
        stream(
            event("message_start", message={"usage": first}),
            text("Yes"),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": None, "output_tokens": 9}),
            STOP,
        )
    )
    assert answer.usage == Usage(123, 9, 100)


async def test_unknown_events_and_blocks_are_ignored() -> None:
    answer, _ = await ask(
        stream(
            START,
            event("ping"),
            event("news", delta={"text": "no"}),
            event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
            event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm."}),
            event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "xyz"}),
            event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block={"type": "server_tool_use", "id": "s1", "name": "web"}),
            event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"}),
            event("content_block_start", index=2, content_block={"type": "text", "text": "Y"}),
            text("es"),
            event("message_delta", delta={"stop_reason": "pause_turn"}, usage=None),
            STOP,
        )
    )
    assert (answer.message, answer.finish) == (Message(Role.ASSISTANT, "Yes", reasoning="Hm."), Finish.STOP)


async def test_signed_thinking_blocks_are_sent_back_in_their_places() -> None:
    def thinking(index: int, words: str, signature: str) -> list[dict[str, object]]:
        return [
            event(
                "content_block_start", index=index, content_block={"type": "thinking", "thinking": "", "signature": ""}
            ),
            event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": words}),
            *(
                event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": part})
                for part in signature
            ),
        ]

    def use(index: int) -> dict[str, object]:
        block = {"type": "tool_use", "id": f"c{index}", "name": "f", "input": {}}
        return event("content_block_start", index=index, content_block=block)

    said = event("content_block_start", index=1, content_block={"type": "text", "text": "I look."})
    sealed = event("content_block_start", index=4, content_block={"type": "redacted_thinking", "data": "##"})
    answer, _ = await ask(
        stream(
            START,
            *thinking(0, "First.", "ab"),
            said,
            *thinking(2, "Then.", "cd"),
            use(3),
            sealed,
            use(5),
            *thinking(6, "Unsigned.", ""),
            STOP,
        )
    )
    results = tuple(Message(Role.TOOL, "sky", (), call.id, "f") for call in answer.message.tool_calls)
    _, sent = await ask(Say("Yes"), (*HELLO, answer.message, *results))
    blocks = sent["messages"][1]["content"]
    assert [block["type"] for block in blocks] == [
        "thinking",
        "text",
        "thinking",
        "tool_use",
        "redacted_thinking",
        "tool_use",
    ]
    assert blocks[0] == {"type": "thinking", "thinking": "First.", "signature": "ab"}
    assert blocks[4] == {"type": "redacted_thinking", "data": "##"}


async def test_arguments_may_come_with_the_first_event_of_a_call() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
    answer, _ = await ask(stream(START, event("content_block_start", index=0, content_block=block), STOP))
    assert answer.message.tool_calls == (ToolCall("c1", "f", '{"a":1}'),)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", Finish.STOP),
        ("stop_sequence", Finish.STOP),
        ("tool_use", Finish.STOP),
        ("max_tokens", Finish.LENGTH),
        ("model_context_window_exceeded", Finish.LENGTH),
        ("refusal", Finish.REFUSED),
    ],
)
async def test_stop_reasons_are_translated(reason: str, finish: Finish) -> None:
    answer, _ = await ask(stream(START, text("Yes"), event("message_delta", delta={"stop_reason": reason}), STOP))
    assert answer.finish is finish


async def test_an_answer_without_message_stop_was_cut_off() -> None:
    end = event("message_delta", delta={"stop_reason": "end_turn"})
    with pytest.raises(ModelUnavailable, match="ended in the middle"):
        await ask(stream(START, text("Yes"), end))


async def test_events_without_names_are_parsed() -> None:
    raw = stream(START, text("Yes"), STOP)
    answer, _ = await ask(Raw(tuple(piece.partition(b"\n")[2] for piece in raw.pieces)))
    assert answer.message.content == "Yes"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ModelUnavailable),
        ("api_error", ModelUnavailable),
        ("rate_limit_error", ModelUnavailable),
        ("invalid_request_error", ModelRefused),
    ],
)
async def test_an_error_inside_a_stream_is_translated(kind: str, error: type[ModelError]) -> None:
    with pytest.raises(ModelError, match="Sorry") as caught:
        await ask(stream(START, text("Ye"), event("error", error={"type": kind, "message": "Sorry"})))
    assert type(caught.value) is error
