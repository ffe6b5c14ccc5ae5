"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing

import msgspec
from msgspec import Struct, field

from everthread.adapters.models.http import CONNECT_S_MAX, IDLE_S_MAX, NO_TEXT, ErrorObject, Event, Wire
from everthread.adapters.models.sse import Halves, joined, joined_up
from everthread.adapters.models.tool_calls import is_object, told_apart, valid_name
from everthread.domain.errors import ModelUnavailable
from everthread.domain.model import Message, Role, Thought, ToolCall, whole
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


# --- What is sent --------------------------------------------------------------------------------------------------


class _Text(msgspec.Struct, omit_defaults=True, tag="text"):
    text: str
    cache_control: dict[str, str] | None = None


class _Use(msgspec.Struct, omit_defaults=True, tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    cache_control: dict[str, str] | None = None


class _Result(msgspec.Struct, omit_defaults=True, tag="tool_result"):
    tool_use_id: str
    content: str
    cache_control: dict[str, str] | None = None


class _Thinking(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str


class _Redacted(msgspec.Struct, tag="redacted_thinking"):
    data: str


class _Place(msgspec.Struct, array_like=True):
    """A block of thinking, and how many other blocks stood before it: their order must stay."""

    before: int
    block: _Thinking | _Redacted


_PLACES = msgspec.json.Decoder(list[_Place])
_Sendable = _Text | _Use | _Result | _Thinking | _Redacted


class _Sent(msgspec.Struct):
    role: str
    content: list[_Sendable]


def _merged(messages: Sequence[Message]) -> list[_Sent]:
    """The messages as blocks; neighbours of one role are one message, and whoever said nothing is left out."""
    sent: list[_Sent] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message)
        if blocks and sent and sent[-1].role == role:
            sent[-1].content += blocks
        elif blocks:
            sent.append(_Sent(role, blocks))
    return sent


def _blocks(message: Message) -> list[_Sendable]:
    text = whole(message.content)
    if message.role is Role.TOOL:
        return [_Result(valid_name(message.tool_call_id or ""), text)]
    said = [_Text(text)] if text.strip() else []
    if message.role is Role.ASSISTANT:
        blocks: list[_Sendable] = [*said, *(_use(call) for call in message.tool_calls)]
        for place in reversed(_places(message)):
            blocks.insert(place.before, place.block)
        return blocks
    return [*(said or [_Text(NO_TEXT)])]


def _places(message: Message) -> list[_Place]:
    try:
        return _PLACES.decode(message.thought.content) if message.thought else []
    except msgspec.DecodeError:
        return []


def _use(call: ToolCall) -> _Use:
    arguments = whole(call.arguments)
    given = arguments.encode() if is_object(arguments) else b"{}"
    return _Use(valid_name(call.id), valid_name(call.name), msgspec.Raw(given))


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


# --- What comes back -----------------------------------------------------------------------------------------------


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class _Start(msgspec.Struct):
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    data: str | None = None


class _Piece(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Said(msgspec.Struct):
    """An event of any type; those that we do not know are passed over."""

    type: str | None = None
    index: int | None = None
    message: _Start | None = None
    content_block: _Block | None = None
    delta: _Piece | None = None
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


_SAID = msgspec.json.Decoder(_Said)


class _GrowingCall(Struct):
    id: str
    name: str
    given: dict[str, object]
    arguments: list[str] = field(default_factory=list[str])

    def whole(self) -> ToolCall:
        return ToolCall(self.id, self.name, joined("".join(self.arguments)) or _JSON.encode(self.given).decode())


class _GrowingThought(Struct):
    before: int
    text: list[str] = field(default_factory=list[str])
    signature: str = ""


class _Reading:
    """An answer as far as it has come."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self._reason = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _GrowingCall] = {}
        self._thoughts: dict[int, _GrowingThought | _Place] = {}
        self._usage = _Usage()
        self._halves = Halves()
        self._halves_of_reasoning = Halves()

    def take(self, said: _Said) -> Delta | None:
        usage = said.message.usage if said.message else said.usage
        if usage is not None:
            self._count(usage)
        match said.type:
            case "message_start":
                self.begun = True
            case "message_stop":
                self.ended = True
            case "content_block_start" if said.content_block:
                return self._begin(said.index or 0, said.content_block)
            case "content_block_delta" | "message_delta" if said.delta:
                return self._add(said.index or 0, said.delta)
            case _:
                pass
        return None

    def _count(self, usage: _Usage) -> None:
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    def _begin(self, index: int, block: _Block) -> Delta | None:
        if block.type == "tool_use":
            self._calls[index] = _GrowingCall(block.id or "", block.name or "", block.input or {})
        before = len(self._calls) + any(text.strip() for text in self._text)
        if block.type == "thinking":
            self._thoughts[index] = _GrowingThought(before)
        elif block.type == "redacted_thinking" and block.data:
            self._thoughts[index] = _Place(before, _Redacted(block.data))
        return self._say(block.text or "", "")

    def _add(self, index: int, piece: _Piece) -> Delta | None:
        self._reason = piece.stop_reason or self._reason
        if piece.partial_json and index in self._calls:
            self._calls[index].arguments.append(piece.partial_json)
        if isinstance(thought := self._thoughts.get(index), _GrowingThought):
            thought.text.append(piece.thinking or "")
            thought.signature += piece.signature or ""
        return self._say(piece.text or "", piece.thinking or "")

    def _say(self, text: str, reasoning: str) -> Delta | None:
        text, reasoning = self._halves.add(text), self._halves_of_reasoning.add(reasoning)
        if not text and not reasoning:
            return None
        self._text.append(text)
        self._reasoning.append(reasoning)
        return Delta(text, reasoning)

    def answer(self, request: Request) -> Answer:
        calls = [self._calls[index].whole() for index in sorted(self._calls)]
        calls, finish = told_apart(calls, _FINISH.get(self._reason, Finish.STOP), request.tail)
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
        """What must be sent back as it is; what is not signed would be refused."""
        places: list[_Place] = []
        for _, one in sorted(self._thoughts.items()):
            if isinstance(one, _Place):
                places.append(one)
            elif one.signature:
                places.append(_Place(one.before, _Thinking(joined("".join(one.text)), one.signature)))
        return Thought(_JSON.encode(places).decode()) if places else None


def _is_last(event: Event) -> bool:
    return event.name == b"message_stop"


# --- The client ----------------------------------------------------------------------------------------------------


class Anthropic:
    """A client of one endpoint. `key_name` is what a person is told to set if the key is missing or wrong;
    one that `needs_key` is not sent anything without.

    A request has up to four marks for the endpoint's cache: behind the tools, the system prompt, the user's new message
    (where the next turn's history will still be the same) and, inside a turn, the newest message.
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
        # People write it with and without.
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._wire = Wire(
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
            start["system"] = [_Text(whole(prompt.system), _CACHE)]
        return _JSON.encode(start)[:-1] + b',"messages":['

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b",".join(map(_JSON.encode, _merged(messages)))

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        reading = _Reading()
        try:
            async with aclosing(self._wire.events("/v1/messages", _body(request), _is_last)) as events:
                async for arrived in events:
                    for delta in joined_up(self._taken(arrived, reading)):
                        yield delta
        except ModelUnavailable:
            if not reading.ended:
                raise
        if not reading.ended:
            raise self._wire.broken("broke off in the middle of its answer" if reading.begun else "answered nothing")
        yield reading.answer(request)

    async def aclose(self) -> None:
        await self._wire.aclose()

    def _taken(self, events: Sequence[Event], reading: _Reading) -> Iterator[Delta]:
        for event in events:
            if (delta := reading.take(self._decoded(event))) is not None:
                yield delta
            if reading.ended:
                return

    def _decoded(self, event: Event) -> _Said:
        said = self._wire.decoded(event, _SAID)
        if said.error:
            raise self._wire.failure(said.error)
        return said


def _body(request: Request) -> tuple[bytes, ...]:
    tail = _merged(request.tail)
    _mark(tail[0].content[0])
    if request.recall:
        tail[0].content.insert(1, _Text(whole(request.recall)))
    if len(tail) > 1:
        _mark(tail[-1].content[-1])
    closing = f'],"max_tokens":{request.output_tokens_max}}}'.encode()
    return request.head, request.history, b"," if request.history else b"", b",".join(map(_JSON.encode, tail)), closing


def _mark(block: _Sendable) -> None:
    if isinstance(block, _Text | _Use | _Result):
        block.cache_control = _CACHE
