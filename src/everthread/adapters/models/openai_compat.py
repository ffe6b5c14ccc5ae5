"""Chat Completions, as spoken by OpenAI and by nearly everybody else: OpenRouter, Ollama, llama.cpp, vLLM, Gemini..."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from everthread.adapters.models.http import CONNECT_S_MAX, IDLE_S_MAX, NO_TEXT, ErrorObject, Event, Wire
from everthread.adapters.models.sse import Halves, joined, joined_up
from everthread.adapters.models.tool_calls import is_object, told_apart, valid_name
from everthread.domain.errors import ModelUnavailable
from everthread.domain.model import Message, Role, Thought, ToolCall, whole
from everthread.ports.model import Answer, Delta, Finish, Prompt, Request, ToolSchema, Traits, Usage

_DONE = b"[DONE]"
_DETAIL_TEXTS = ("text", "summary", "data")
_FINISH = {
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "content_filter": Finish.REFUSED,
    "safety": Finish.REFUSED,
    "refusal": Finish.REFUSED,
}
_JSON = msgspec.json.Encoder(enc_hook=dict)
_Extra = dict[str, object]


# --- What is sent --------------------------------------------------------------------------------------------------


class _SentFunction(msgspec.Struct):
    name: str
    arguments: str


class _SentCall(msgspec.Struct):
    id: str
    function: _SentFunction
    type: str = "function"
    extra_content: _Extra | msgspec.UnsetType = msgspec.UNSET


class _Sent(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | None
    tool_calls: list[_SentCall] = []
    tool_call_id: str | None = None
    reasoning_content: str = ""
    reasoning_details: list[_Extra] = []
    extra_content: _Extra | None = None


class _Thought(msgspec.Struct, omit_defaults=True):
    """What endpoints want to have back, each in its own form: DeepSeek and others, OpenRouter, and Gemini, which signs
    the message or its calls.
    """

    reasoning_content: str = ""
    reasoning_details: list[_Extra] = []
    extra_content: _Extra | None = None
    calls: dict[str, _Extra] = {}
    """The extra content of a call, by its id."""


_THOUGHT = msgspec.json.Decoder(_Thought)


def _encoded(message: Message) -> bytes:
    text = whole(message.content)
    match message.role:
        case Role.TOOL:
            sent = _Sent("tool", text, tool_call_id=message.tool_call_id or "")
        case Role.ASSISTANT if message.tool_calls:
            thought = _thought(message)
            calls = [_sent_call(call, thought.calls.get(call.id)) for call in message.tool_calls]
            sent = _Sent("assistant", text or None, calls)
            sent.reasoning_content, sent.extra_content = thought.reasoning_content, thought.extra_content
            sent.reasoning_details = thought.reasoning_details
        case role:
            sent = _Sent(role.value, text if text.strip() else NO_TEXT)
    return _JSON.encode(sent)


def _is_empty(message: Message) -> bool:
    """An answer that was stopped before its first word: endpoints refuse such a message."""
    return message.role is Role.ASSISTANT and not message.content.strip() and not message.tool_calls


def _sent_call(call: ToolCall, extra: _Extra | None) -> _SentCall:
    arguments = whole(call.arguments)
    # What is no JSON would be refused by endpoints that read it: vLLM, Gemini...
    function = _SentFunction(valid_name(call.name), arguments if is_object(arguments) else "{}")
    return _SentCall(call.id, function, extra_content=extra or msgspec.UNSET)


def _thought(message: Message) -> _Thought:
    try:
        return _THOUGHT.decode(message.thought.content) if message.thought else _Thought()
    except msgspec.DecodeError:
        return _Thought()


def _schema(tool: ToolSchema) -> dict[str, object]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


# --- What comes back -----------------------------------------------------------------------------------------------


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: _Extra | None = None


class _Piece(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[_Extra] | None = None
    extra_content: _Extra | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Piece | None = None
    message: _Piece | None = None
    """From endpoints that do not stream."""
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's."""
    cost: float | None = None
    """OpenRouter's."""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: ErrorObject | str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _GrowingCall(Struct):
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: _Extra | None = None

    def starts_anew(self, id: str, name: str) -> bool:
        """Whether a piece with the same index belongs to another call: some endpoints number all of them 0."""
        if id:
            return bool(self.id) and id != self.id
        return bool(name and self.name) and is_object("".join(self.arguments))


class _Reading:
    """An answer as far as it has come."""

    def __init__(self) -> None:
        self.begun = False
        self.reason: str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._named_content = False
        """The reasoning came under the name by which it may be sent back."""
        self._details: list[_Extra] = []
        self._extra: _Extra | None = None
        self._refused = False
        self._calls: list[_GrowingCall] = []
        self._by_index: dict[int, _GrowingCall] = {}
        self._usage = Usage()
        self._halves = Halves()
        self._halves_of_reasoning = Halves()

    def take(self, chunk: _Chunk) -> Delta | None:
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        if not chunk.choices:
            return None
        self.begun = True
        choice = chunk.choices[0]
        self.reason = choice.finish_reason or self.reason
        piece = choice.delta or choice.message
        return None if piece is None else self._add(piece)

    def _add(self, piece: _Piece) -> Delta | None:
        self._refused |= bool(piece.refusal)
        text = self._halves.add(piece.content or piece.refusal or "")
        reasoning = self._halves_of_reasoning.add(piece.reasoning_content or piece.reasoning or "")
        self._named_content |= bool(piece.reasoning_content)
        self._extra = piece.extra_content or self._extra
        for detail in piece.reasoning_details or ():
            _add_detail(self._details, detail)
        for call in piece.tool_calls or ():
            self._add_call(call)
        if not text and not reasoning:
            return None
        self._text.append(text)
        self._reasoning.append(reasoning)
        return Delta(text, reasoning)

    def _add_call(self, piece: _Call) -> None:
        function = piece.function or _Function()
        id, name = piece.id or "", function.name or ""
        index = piece.index
        if index is None:
            # Without a number, whatever has an id or a name is the next call.
            index = len(self._calls) if id or name or not self._calls else len(self._calls) - 1
        call = self._by_index.get(index)
        if call is None or call.starts_anew(id, name):
            call = self._by_index[index] = _GrowingCall(id)
            self._calls.append(call)
        call.id = call.id or id
        call.name = call.name or name
        call.extra = piece.extra_content or call.extra
        if isinstance(function.arguments, dict):
            call.arguments.append(_JSON.encode(function.arguments).decode())
        elif function.arguments:
            call.arguments.append(function.arguments)

    def answer(self, request: Request) -> Answer:
        finish = Finish.REFUSED if self._refused else _FINISH.get(self.reason or "", Finish.STOP)
        made = [ToolCall(call.id, call.name, joined("".join(call.arguments)) or "{}") for call in self._calls]
        # Calls that were cut off are left out, and ids may be given anew: the order tells whose the extra content is.
        extras = [
            grown.extra
            for grown, call in zip(self._calls, made, strict=True)
            if finish is not Finish.LENGTH or is_object(call.arguments)
        ]
        calls, finish = told_apart(made, finish, request.tail)
        message = Message(
            Role.ASSISTANT,
            "".join(self._text),
            tool_calls=calls,
            reasoning="".join(self._reasoning) or None,
            thought=self._thought(calls, extras) if calls else None,
        )
        return Answer(message, self._usage, finish)

    def _thought(self, calls: Sequence[ToolCall], extras: Sequence[_Extra | None]) -> Thought | None:
        by_id = {call.id: extra for call, extra in zip(calls, extras, strict=True) if extra}
        content = "".join(self._reasoning) if self._named_content else ""
        thought = _Thought(content, self._details, self._extra, by_id)
        try:
            return None if thought == _Thought() else Thought(_JSON.encode(thought).decode())
        except UnicodeEncodeError:
            # Half a character in what nobody was meant to read: it can't be sent back as it was.
            return None


def _add_detail(details: list[_Extra], piece: _Extra) -> None:
    """Pieces of one detail have its number; their texts are one text."""
    for known in details:
        if piece.get("index") is not None and (known.get("index"), known.get("type")) == (
            piece.get("index"),
            piece.get("type"),
        ):
            break
    else:
        details.append({name: value for name, value in piece.items() if value is not None})
        return
    for name, value in piece.items():
        before = known.get(name)
        if name in _DETAIL_TEXTS and isinstance(before, str) and isinstance(value, str):
            known[name] = before + value
        elif value is not None:
            known[name] = value


def _usage(said: _Usage) -> Usage:
    cached = said.prompt_tokens_details.cached_tokens if said.prompt_tokens_details else None
    return Usage(
        input_tokens=said.prompt_tokens or 0,
        output_tokens=said.completion_tokens or 0,
        cached_tokens=cached or said.prompt_cache_hit_tokens or 0,
        cost=said.cost,
    )


def _is_last(event: Event) -> bool:
    return event.data == _DONE


# --- The client ----------------------------------------------------------------------------------------------------


class OpenAICompat:
    """A client of one endpoint. `key_name` is what a person is told to set if the key is missing or wrong;
    one that `needs_key` is not sent anything without."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        traits: Traits | None = None,
        headers: Mapping[str, str] | None = None,
        key_name: str = "OPENAI_API_KEY",
        connect_s: float = CONNECT_S_MAX,
        idle_s: float = IDLE_S_MAX,
        needs_key: bool = False,
    ) -> None:
        key = api_key.strip()
        sent = ({"Authorization": f"Bearer {key}"} if key else {}) | dict(headers or {})
        self._wire = Wire(
            base_url, sent, key=key, key_name=key_name, needs_key=needs_key, connect_s=connect_s, idle_s=idle_s
        )
        self._traits = traits or Traits()
        # OpenAI's newer models refuse the old name of the limit, and the others know no other.
        host = urlsplit(base_url).hostname or ""
        newer = host == "api.openai.com" or host.endswith(".openai.azure.com")
        self._limit = "max_completion_tokens" if newer else "max_tokens"

    def traits(self, model: str) -> Traits:
        return self._traits

    def head(self, prompt: Prompt) -> bytes:
        start = _JSON.encode({"model": prompt.model, "stream": True, "stream_options": {"include_usage": True}})
        tools = b',"tools":' + _JSON.encode([_schema(tool) for tool in prompt.tools]) if prompt.tools else b""
        system = _encoded(Message(Role.SYSTEM, prompt.system)) + b"," if prompt.system else b""
        return start[:-1] + tools + b',"messages":[' + system

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b",".join(_encoded(message) for message in messages if not _is_empty(message))

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        reading = _Reading()
        try:
            async with aclosing(self._wire.events("/chat/completions", self._body(request), _is_last)) as events:
                async for arrived in events:
                    for delta in joined_up(self._taken(arrived, reading)):
                        yield delta
        except ModelUnavailable:
            # Whatever breaks behind the end of an answer takes nothing from it but its usage.
            if reading.reason is None:
                raise
        if not reading.begun or reading.reason in (None, "error"):
            raise self._wire.broken("broke off in the middle of its answer" if reading.begun else "answered nothing")
        yield reading.answer(request)

    async def aclose(self) -> None:
        await self._wire.aclose()

    def _body(self, request: Request) -> tuple[bytes, ...]:
        first, *rest = request.tail
        if request.recall:
            first = replace(first, content=f"{first.content}\n\n{request.recall}")
        closing = f'],"{self._limit}":{request.output_tokens_max}}}'.encode()
        return request.head, request.history, b"," if request.history else b"", self.encode((first, *rest)), closing

    def _taken(self, events: Sequence[Event], reading: _Reading) -> Iterator[Delta]:
        for event in events:
            if event.data == _DONE:
                reading.reason = reading.reason or "stop"
                return
            if (delta := reading.take(self._decoded(event))) is not None:
                yield delta

    def _decoded(self, event: Event) -> _Chunk:
        chunk = self._wire.decoded(event, _CHUNK)
        if chunk.error:
            raise self._wire.failure(chunk.error)
        return chunk
