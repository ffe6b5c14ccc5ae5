"""Client of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from everthread.adapters.models.http import CONNECT_S_MAX, IDLE_S_MAX, NO_TEXT, ErrorObject, SseEvent, StreamingClient
from everthread.adapters.models.sse import SurrogateJoiner, join_surrogates
from everthread.adapters.models.tool_call_validation import is_object, runnable_calls, valid_name
from everthread.domain.model import Message, Role, Thought, ToolCall, replace_surrogates
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, ToolSchema, Traits, Usage

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
_CACHE = {"type": "ephemeral"}
_FINISH = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.REFUSED,
}
_JSON = msgspec.json.Encoder(enc_hook=dict)


# Requests -----------------------------------------------------------------------------------------------------------


class _Text(msgspec.Struct, omit_defaults=True, tag="text"):
    text: str
    cache_control: dict[str, str] | None = None


class _ToolUse(msgspec.Struct, omit_defaults=True, tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    cache_control: dict[str, str] | None = None


class _ToolResult(msgspec.Struct, omit_defaults=True, tag="tool_result"):
    tool_use_id: str
    content: str
    cache_control: dict[str, str] | None = None


class _Thinking(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str


class _RedactedThinking(msgspec.Struct, tag="redacted_thinking"):
    data: str


class _PositionedThought(msgspec.Struct, array_like=True):
    """A thinking block, and the number of other blocks before it: the order must be preserved."""

    before: int
    block: _Thinking | _RedactedThinking


_THOUGHTS = msgspec.json.Decoder(list[_PositionedThought])
_Sendable = _Text | _ToolUse | _ToolResult | _Thinking | _RedactedThinking


class _SentMessage(msgspec.Struct):
    role: str
    content: list[_Sendable]


def _sent_messages(messages: Sequence[Message]) -> list[_SentMessage]:
    """Convert messages to blocks. Neighbours of one role are merged, and empty messages are left out."""
    sent: list[_SentMessage] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message)
        if blocks and sent and sent[-1].role == role:
            sent[-1].content += blocks
        elif blocks:
            sent.append(_SentMessage(role, blocks))
    return sent


def _blocks(message: Message) -> list[_Sendable]:
    text = replace_surrogates(message.content)
    if message.role is Role.TOOL:
        return [_ToolResult(valid_name(message.tool_call_id or ""), text)]
    texts = [_Text(text)] if text.strip() else []
    if message.role is Role.ASSISTANT:
        blocks: list[_Sendable] = [*texts, *(_tool_use(call) for call in message.tool_calls)]
        for thought in reversed(_stored_thoughts(message)):
            blocks.insert(thought.before, thought.block)
        return blocks
    return [*(texts or [_Text(NO_TEXT)])]


def _stored_thoughts(message: Message) -> list[_PositionedThought]:
    try:
        return _THOUGHTS.decode(message.thought.content) if message.thought else []
    except msgspec.DecodeError:
        return []


def _tool_use(call: ToolCall) -> _ToolUse:
    arguments = replace_surrogates(call.arguments)
    valid = arguments.encode() if is_object(arguments) else b"{}"
    return _ToolUse(valid_name(call.id), valid_name(call.name), msgspec.Raw(valid))


def _schemas(tools: Sequence[ToolSchema]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.parameters or {"type": "object", "properties": {}},
        }
        for tool in tools
    ]
    if found:
        found[-1]["cache_control"] = _CACHE
    return found


# Responses ----------------------------------------------------------------------------------------------------------


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class _MessageStart(msgspec.Struct):
    usage: _AnthropicUsage | None = None


class _Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    data: str | None = None


class _BlockDelta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _StreamEvent(msgspec.Struct):
    """An event of any type; unknown types are ignored."""

    type: str | None = None
    index: int | None = None
    message: _MessageStart | None = None
    content_block: _Block | None = None
    delta: _BlockDelta | None = None
    usage: _AnthropicUsage | None = None
    error: ErrorObject | str | None = None


_STREAM_EVENT = msgspec.json.Decoder(_StreamEvent)


class _PartialCall(Struct):
    id: str
    name: str
    initial: dict[str, object]
    arguments: list[str] = field(default_factory=list[str])

    def whole(self) -> ToolCall:
        return ToolCall(
            self.id, self.name, join_surrogates("".join(self.arguments)) or _JSON.encode(self.initial).decode()
        )


class _PartialThought(Struct):
    before: int
    text: list[str] = field(default_factory=list[str])
    signature: str = ""


class _AnthropicReader:
    """Collects an answer from its stream."""

    def __init__(self) -> None:
        self.has_begun = False
        self.has_ended = False
        self._reason = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._thoughts: dict[int, _PartialThought | _PositionedThought] = {}
        self._usage = _AnthropicUsage()
        self._text_joiner = SurrogateJoiner()
        self._reasoning_joiner = SurrogateJoiner()

    def is_last(self, event: SseEvent) -> bool:
        return event.name == b"message_stop"

    def deltas(self, events: Sequence[SseEvent], http: StreamingClient) -> Iterator[Delta]:
        for event in events:
            decoded = http.decode_json(event, _STREAM_EVENT)
            if decoded.error:
                raise http.error_in_stream(decoded.error)
            if (delta := self._feed(decoded)) is not None:
                yield delta
            if self.has_ended:
                return

    def _feed(self, event: _StreamEvent) -> Delta | None:
        usage = event.message.usage if event.message else event.usage
        if usage is not None:
            self._count(usage)
        match event.type:
            case "message_start":
                self.has_begun = True
            case "message_stop":
                self.has_ended = True
            case "content_block_start" if event.content_block:
                return self._begin(event.index or 0, event.content_block)
            case "content_block_delta" | "message_delta" if event.delta:
                return self._add(event.index or 0, event.delta)
            case _:
                pass
        return None

    def _count(self, usage: _AnthropicUsage) -> None:
        for name in _AnthropicUsage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    def _begin(self, index: int, block: _Block) -> Delta | None:
        if block.type == "tool_use":
            self._calls[index] = _PartialCall(block.id or "", block.name or "", block.input or {})
        before = len(self._calls) + any(text.strip() for text in self._text)
        if block.type == "thinking":
            self._thoughts[index] = _PartialThought(before)
        elif block.type == "redacted_thinking" and block.data:
            self._thoughts[index] = _PositionedThought(before, _RedactedThinking(block.data))
        return self._delta(block.text or "", "")

    def _add(self, index: int, piece: _BlockDelta) -> Delta | None:
        self._reason = piece.stop_reason or self._reason
        if piece.partial_json and index in self._calls:
            self._calls[index].arguments.append(piece.partial_json)
        if isinstance(thought := self._thoughts.get(index), _PartialThought):
            thought.text.append(piece.thinking or "")
            thought.signature += piece.signature or ""
        return self._delta(piece.text or "", piece.thinking or "")

    def _delta(self, text: str, reasoning: str) -> Delta | None:
        text, reasoning = self._text_joiner.add(text), self._reasoning_joiner.add(reasoning)
        if not text and not reasoning:
            return None
        self._text.append(text)
        self._reasoning.append(reasoning)
        return Delta(text, reasoning)

    def answer(self, request: Request) -> Answer:
        calls = [self._calls[index].whole() for index in sorted(self._calls)]
        calls, finish = runnable_calls(calls, _FINISH.get(self._reason, Finish.STOP), request.tail)
        message = Message(
            Role.ASSISTANT,
            "".join(self._text),
            tool_calls=calls,
            reasoning="".join(self._reasoning) or None,
            thought=self._thought() if calls else None,
        )
        cached = self._usage.cache_read_input_tokens or 0
        sent = (self._usage.input_tokens or 0) + cached + (self._usage.cache_creation_input_tokens or 0)
        return Answer(message, Usage(sent, self._usage.output_tokens or 0, cached), finish)

    def _thought(self) -> Thought | None:
        """Return the thinking blocks that must be sent back unchanged. Unsigned ones would be rejected."""
        thoughts: list[_PositionedThought] = []
        for _, one in sorted(self._thoughts.items()):
            if isinstance(one, _PositionedThought):
                thoughts.append(one)
            elif one.signature:
                thoughts.append(
                    _PositionedThought(one.before, _Thinking(join_surrogates("".join(one.text)), one.signature))
                )
        return Thought(_JSON.encode(thoughts).decode()) if thoughts else None


# The client ---------------------------------------------------------------------------------------------------------


class Anthropic:
    """Client of one endpoint. `key_name` is the setting that errors about the key refer to. With `needs_key`, no
    request is sent without a key.

    A request has up to four cache breakpoints: after the tools, the system prompt, the user's new message (the end of
    the next turn's history) and, inside a turn, the newest message.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        api_key: str = "",
        *,
        traits: Traits | None = None,
        headers: Mapping[str, str] | None = None,
        key_name: str = "ANTHROPIC_API_KEY",
        connect_s: float = CONNECT_S_MAX,
        idle_s: float = IDLE_S_MAX,
        needs_key: bool = False,
    ) -> None:
        key = api_key.strip()
        sent = {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {}) | dict(headers or {})
        # The path may be part of the setting or not.
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._http = StreamingClient(
            base_url, sent, key=key, key_name=key_name, needs_key=needs_key, connect_s=connect_s, idle_s=idle_s
        )
        self._traits = traits or Traits(context_tokens=200_000)

    def traits(self, model: str) -> Traits:
        return self._traits

    def head(self, prompt: Prompt) -> bytes:
        start: dict[str, object] = {"model": prompt.model, "stream": True}
        if prompt.tools:
            start["tools"] = _schemas(prompt.tools)
        if prompt.system.strip():
            start["system"] = [_Text(replace_surrogates(prompt.system), _CACHE)]
        return _JSON.encode(start)[:-1] + b',"messages":['

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b",".join(map(_JSON.encode, _sent_messages(messages)))

    def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        return self._http.answer("/v1/messages", _body(request), _AnthropicReader(), request)

    async def aclose(self) -> None:
        await self._http.aclose()


def _body(request: Request) -> tuple[bytes, ...]:
    tail = _sent_messages(request.tail)
    _mark_for_cache(tail[0].content[0])
    if request.recall:
        tail[0].content.insert(1, _Text(replace_surrogates(request.recall)))
    if len(tail) > 1:
        _mark_for_cache(tail[-1].content[-1])
    closing = f'],"max_tokens":{request.output_tokens_max}}}'.encode()
    return request.head, request.history, b"," if request.history else b"", b",".join(map(_JSON.encode, tail)), closing


def _mark_for_cache(block: _Sendable) -> None:
    if isinstance(block, _Text | _ToolUse | _ToolResult):
        block.cache_control = _CACHE
