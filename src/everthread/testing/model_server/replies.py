"""Scripted replies of the stub model server and their encoding in each protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from everthread.domain.model import ToolCall
from everthread.ports.model import Finish, Usage


class End(StrEnum):
    """End of a streamed reply."""

    WHOLE = "whole"
    CUT = "cut"
    """Close the connection in the middle."""
    STALL = "stall"
    """Send nothing more until the client disconnects."""


@dataclass(frozen=True, slots=True)
class Say:
    """An answer. Its text and the arguments of each call are split into chunks, with a pause before each chunk."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    chunks: int = 1
    delay_s: float = 0.0
    finish: Finish = Finish.STOP
    usage: Usage = Usage(10, 5)
    end: End = End.WHOLE


@dataclass(frozen=True, slots=True)
class Raw:
    """Raw bytes, each piece sent separately."""

    pieces: tuple[bytes, ...]
    content_type: str = "text/event-stream"
    delay_s: float = 0.0
    end: End = End.WHOLE


@dataclass(frozen=True, slots=True)
class Fail:
    status: int
    message: str = ""
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Reply = Say | Raw | Fail


class Protocol(StrEnum):
    CHAT = "/v1/chat/completions"
    MESSAGES = "/v1/messages"


class ReasoningFormat(StrEnum):
    """Format in which a model returns its reasoning before a tool call and expects it back."""

    CONTENT = "reasoning_content"
    """DeepSeek and Kimi."""
    DETAILS = "reasoning_details"
    """OpenRouter."""
    SIGNATURE = "thought_signature"
    """Gemini, on the first call."""
    BLOCKS = "thinking"
    """Anthropic; the only format of the Messages protocol."""


def sign(thought: str) -> str:
    return "sig-" + hashlib.sha256(thought.encode()).hexdigest()[:16]


def frames(protocol: Protocol, say: Say, model: str, thinks: ReasoningFormat | None = None) -> Iterator[bytes]:
    """Encode an answer as stream events."""
    return _chat_frames(say, model, thinks) if protocol is Protocol.CHAT else _message_frames(say, model, thinks)


def chat_completion(say: Say, model: str) -> bytes:
    """Encode an answer without streaming."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in say.calls
    ]
    message: dict[str, object] = {"role": "assistant", "content": say.text or None}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _chat_reason(say)}
    return msgspec.json.encode(
        {
            "id": "stub",
            "object": "chat.completion",
            "model": model,
            "choices": [choice],
            "usage": _chat_usage(say.usage),
        }
    )


def encode_failure(protocol: Protocol, fail: Fail) -> bytes:
    error: dict[str, object] = {"message": fail.message, "type": fail.kind or "error"}
    if protocol is Protocol.MESSAGES:
        return msgspec.json.encode({"type": "error", "error": error})
    return msgspec.json.encode({"error": error | {"param": None, "code": fail.kind or None}})


def split_chunks(text: str, count: int) -> list[str]:
    """Split the text into at most `count` pieces of similar length."""
    size = max(-(-len(text) // max(count, 1)), 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


def _chat_frames(say: Say, model: str, thinks: ReasoningFormat | None) -> Iterator[bytes]:
    def frame(delta: dict[str, object], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _data({"id": "stub", "object": "chat.completion.chunk", "model": model, "choices": [choice]})

    yield frame({"role": "assistant", "content": ""})
    for delta in _thoughts(say, thinks):
        yield frame(delta)
    for piece in split_chunks(say.text, say.chunks):
        yield frame({"content": piece})
    for index, call in enumerate(say.calls):
        function = {"name": call.name, "arguments": ""}
        start: dict[str, object] = {"index": index, "id": call.id, "type": "function", "function": function}
        if thinks is ReasoningFormat.SIGNATURE and index == 0:
            start["extra_content"] = {"google": {"thought_signature": sign(call.id)}}
        yield frame({"tool_calls": [start]})
        for piece in split_chunks(call.arguments, say.chunks):
            yield frame({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield frame({}, _chat_reason(say))
    yield _data({"id": "stub", "object": "chat.completion.chunk", "choices": [], "usage": _chat_usage(say.usage)})
    yield b"data: [DONE]\n\n"


def _thoughts(say: Say, thinks: ReasoningFormat | None) -> Iterator[dict[str, object]]:
    pieces = split_chunks(say.reasoning, say.chunks)
    if thinks is not ReasoningFormat.DETAILS:
        for piece in pieces:
            yield {"reasoning_content": piece}
        return
    start = {"type": "reasoning.text", "index": 0, "format": "stub"}
    for piece in pieces:
        yield {"reasoning": piece, "reasoning_details": [start | {"text": piece, "signature": None}]}
    yield {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": sign(say.reasoning)}]}
    sealed = {"type": "reasoning.encrypted", "index": 1, "data": sign(say.reasoning + say.reasoning)}
    yield {"reasoning_details": [sealed]}


def _chat_reason(say: Say) -> str:
    if say.calls and say.finish is Finish.STOP:
        return "tool_calls"
    return {Finish.TOOLS: "tool_calls", Finish.REFUSED: "content_filter"}.get(say.finish, say.finish.value)


def _chat_usage(usage: Usage) -> dict[str, object]:
    said: dict[str, object] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    return said if usage.cost is None else said | {"cost": usage.cost}


def _message_frames(say: Say, model: str, thinks: ReasoningFormat | None) -> Iterator[bytes]:
    usage = {
        "input_tokens": say.usage.input_tokens - say.usage.cached_tokens,
        "cache_read_input_tokens": say.usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message = {"id": "stub", "type": "message", "role": "assistant", "model": model, "usage": usage}
    yield _event("message_start", message=message)
    yield _event("ping")
    index = 0
    for start, kind, name, text in _blocks(say, thinks):
        yield _event("content_block_start", index=index, content_block=start)
        for piece in split_chunks(text, say.chunks):
            yield _event("content_block_delta", index=index, delta={"type": kind, name: piece})
        if thinks and kind == "thinking_delta":
            signature = sign(say.reasoning)
            yield _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": signature})
        yield _event("content_block_stop", index=index)
        index += 1
    reasons = {
        Finish.STOP: "end_turn",
        Finish.TOOLS: "tool_use",
        Finish.LENGTH: "max_tokens",
        Finish.REFUSED: "refusal",
    }
    finish = Finish.TOOLS if say.calls and say.finish is Finish.STOP else say.finish
    delta = {"stop_reason": reasons[finish], "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage={"output_tokens": say.usage.output_tokens})
    yield _event("message_stop")


def _blocks(say: Say, thinks: ReasoningFormat | None) -> Iterator[tuple[dict[str, object], str, str, str]]:
    """Yield each block's start, and the type, field and text of its deltas."""
    if say.reasoning:
        yield {"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking", say.reasoning
    if say.reasoning and thinks:
        yield {"type": "redacted_thinking", "data": sign(say.reasoning + say.reasoning)}, "", "", ""
    if say.text:
        yield {"type": "text", "text": ""}, "text_delta", "text", say.text
    for call in say.calls:
        empty: dict[str, object] = {}
        start: dict[str, object] = {"type": "tool_use", "id": call.id, "name": call.name, "input": empty}
        yield start, "input_json_delta", "partial_json", call.arguments


def _event(kind: str, **content: object) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind} | content)


def _data(content: object) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"
