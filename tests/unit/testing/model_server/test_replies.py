"""Scripted replies in the format of each protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.domain.model import ToolCall
from everthread.ports.model import Finish, Usage
from everthread.testing.model_server.replies import (
    Fail,
    Protocol,
    ReasoningFormat,
    Say,
    chat_completion,
    encode_failure,
    frames,
    split_chunks,
)

CALL = ToolCall("c1", "look", '{"where": "up"}')


def events(protocol: Protocol, say: Say, thinks: ReasoningFormat | None = None) -> list[dict[str, Any]]:
    lines = b"".join(frames(protocol, say, "m", thinks)).splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]


def test_a_text_is_split_into_at_most_as_many_chunks() -> None:
    assert split_chunks("abcde", 2) == ["abc", "de"]
    assert split_chunks("ab", 5) == ["a", "b"]
    assert split_chunks("", 3) == []


def test_chat_frames_carry_text_calls_usage_and_the_reason() -> None:
    found = events(Protocol.CHAT, Say("hello", (CALL,), chunks=2, usage=Usage(12, 3, 10)))
    deltas = [one["choices"][0]["delta"] for one in found if one["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "hello"
    pieces = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(pieces) == CALL.arguments
    assert [one["choices"][0]["finish_reason"] for one in found if one["choices"]][-1] == "tool_calls"
    assert found[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 10}


def test_message_frames_open_and_close_each_block() -> None:
    found = events(Protocol.MESSAGES, Say("hello", (CALL,), reasoning="hm"), ReasoningFormat.BLOCKS)
    kinds = [one["content_block"]["type"] for one in found if one["type"] == "content_block_start"]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert sum(one["type"] == "content_block_stop" for one in found) == 4
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert any(one.get("delta", {}).get("type") == "signature_delta" for one in found)


@pytest.mark.parametrize(
    ("finish", "reason"), [(Finish.STOP, "stop"), (Finish.LENGTH, "length"), (Finish.REFUSED, "content_filter")]
)
def test_a_whole_answer_has_its_reason(finish: Finish, reason: str) -> None:
    choice = json.loads(chat_completion(Say("hello", finish=finish), "m"))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello", reason)


def test_a_failure_has_the_shape_of_its_protocol() -> None:
    fail = Fail(429, "slow down", "rate_limit_error")
    assert json.loads(encode_failure(Protocol.MESSAGES, fail))["type"] == "error"
    error = json.loads(encode_failure(Protocol.CHAT, fail))["error"]
    assert (error["message"], error["code"]) == ("slow down", "rate_limit_error")
