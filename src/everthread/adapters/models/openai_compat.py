"""Client of the Chat Completions API: OpenAI, OpenRouter, Ollama, llama.cpp, vLLM, Gemini and others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from everthread.adapters.models.http import CONNECT_S_MAX, IDLE_S_MAX, NO_TEXT, ErrorObject, SseEvent, StreamingClient
from everthread.adapters.models.sse import SurrogateJoiner, join_surrogates
from everthread.adapters.models.tool_call_validation import is_object, runnable_calls, valid_name
from everthread.domain.model import Message, Role, Thought, ToolCall, replace_surrogates
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


# Requests -----------------------------------------------------------------------------------------------------------


class _ChatFunction(msgspec.Struct):
    name: str
    arguments: str


class _ChatToolCall(msgspec.Struct):
    id: str
    function: _ChatFunction
    type: str = "function"
    extra_content: _Extra | msgspec.UnsetType = msgspec.UNSET


class _ChatMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | None
    tool_calls: list[_ChatToolCall] = []
    tool_call_id: str | None = None
    reasoning_content: str = ""
    reasoning_details: list[_Extra] = []
    extra_content: _Extra | None = None


class _StoredThought(msgspec.Struct, omit_defaults=True):
    """Reasoning that must be sent back, in the format of each endpoint: DeepSeek and others, OpenRouter, and Gemini,
    which signs the message or its calls.
    """

    reasoning_content: str = ""
    reasoning_details: list[_Extra] = []
    extra_content: _Extra | None = None
    calls: dict[str, _Extra] = {}
    """Extra content of calls, by id."""


_STORED_THOUGHT = msgspec.json.Decoder(_StoredThought)


def _encode_message(message: Message) -> bytes:
    text = replace_surrogates(message.content)
    match message.role:
        case Role.TOOL:
            sent = _ChatMessage("tool", text, tool_call_id=message.tool_call_id or "")
        case Role.ASSISTANT if message.tool_calls:
            thought = _thought(message)
            calls = [_sent_call(call, thought.calls.get(call.id)) for call in message.tool_calls]
            sent = _ChatMessage("assistant", text or None, calls)
            sent.reasoning_content, sent.extra_content = thought.reasoning_content, thought.extra_content
            sent.reasoning_details = thought.reasoning_details
        case role:
            sent = _ChatMessage(role.value, text if text.strip() else NO_TEXT)
    return _JSON.encode(sent)


def _is_empty(message: Message) -> bool:
    """Tell whether an answer was stopped before its first word. Endpoints reject such a message."""
    return message.role is Role.ASSISTANT and not message.content.strip() and not message.tool_calls


def _sent_call(call: ToolCall, extra: _Extra | None) -> _ChatToolCall:
    arguments = replace_surrogates(call.arguments)
    # vLLM, Gemini and others parse the arguments, and reject invalid JSON.
    function = _ChatFunction(valid_name(call.name), arguments if is_object(arguments) else "{}")
    return _ChatToolCall(call.id, function, extra_content=extra or msgspec.UNSET)


def _thought(message: Message) -> _StoredThought:
    try:
        return _STORED_THOUGHT.decode(message.thought.content) if message.thought else _StoredThought()
    except msgspec.DecodeError:
        return _StoredThought()


def _schema(tool: ToolSchema) -> dict[str, object]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


# Responses ----------------------------------------------------------------------------------------------------------


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None
    extra_content: _Extra | None = None


class _ChoiceDelta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[_Extra] | None = None
    extra_content: _Extra | None = None
    tool_calls: list[_CallDelta] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None
    """Sent by endpoints that do not stream."""
    finish_reason: str | None = None


class _PromptTokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptTokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek."""
    cost: float | None = None
    """OpenRouter."""


class _Chunk(msgspec.Struct):
    choices: list[_ChatChoice] | None = None
    usage: _ChatUsage | None = None
    error: ErrorObject | str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _PartialChatCall(Struct):
    id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: _Extra | None = None

    def is_another(self, id: str, name: str) -> bool:
        """Tell whether a delta with the same index starts another call: some endpoints number all of them 0."""
        if id:
            return bool(self.id) and id != self.id
        return bool(name and self.name) and is_object("".join(self.arguments))


class _ChatReader:
    """Collects an answer from its stream."""

    def __init__(self) -> None:
        self.has_begun = False
        self._reason: str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._named_content = False
        """The reasoning arrived in `reasoning_content`, and may be sent back there."""
        self._details: list[_Extra] = []
        self._extra: _Extra | None = None
        self._refused = False
        self._calls: list[_PartialChatCall] = []
        self._by_index: dict[int, _PartialChatCall] = {}
        self._usage = Usage()
        self._text_joiner = SurrogateJoiner()
        self._reasoning_joiner = SurrogateJoiner()

    @property
    def has_ended(self) -> bool:
        return self.has_begun and self._reason not in (None, "error")

    def is_last(self, event: SseEvent) -> bool:
        return event.data == _DONE

    def deltas(self, events: Sequence[SseEvent], http: StreamingClient) -> Iterator[Delta]:
        for event in events:
            if event.data == _DONE:
                self._reason = self._reason or "stop"
                return
            chunk = http.decode_json(event, _CHUNK)
            if chunk.error:
                raise http.error_in_stream(chunk.error)
            if (delta := self._feed(chunk)) is not None:
                yield delta

    def _feed(self, chunk: _Chunk) -> Delta | None:
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        if not chunk.choices:
            return None
        self.has_begun = True
        choice = chunk.choices[0]
        self._reason = choice.finish_reason or self._reason
        piece = choice.delta or choice.message
        return None if piece is None else self._add(piece)

    def _add(self, piece: _ChoiceDelta) -> Delta | None:
        self._refused |= bool(piece.refusal)
        text = piece.content or piece.refusal or ""
        reasoning = piece.reasoning_content or piece.reasoning or ""
        text, reasoning = text and self._text_joiner.add(text), reasoning and self._reasoning_joiner.add(reasoning)
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

    def _add_call(self, piece: _CallDelta) -> None:
        function = piece.function or _FunctionDelta()
        id, name = piece.id or "", function.name or ""
        index = piece.index
        if index is None:
            # Without an index, an id or a name starts the next call.
            index = len(self._calls) if id or name or not self._calls else len(self._calls) - 1
        call = self._by_index.get(index)
        if call is None or call.is_another(id, name):
            call = self._by_index[index] = _PartialChatCall(id)
            self._calls.append(call)
        call.id = call.id or id
        call.name = call.name or name
        call.extra = piece.extra_content or call.extra
        if isinstance(function.arguments, dict):
            call.arguments.append(_JSON.encode(function.arguments).decode())
        elif function.arguments:
            call.arguments.append(function.arguments)

    def answer(self, request: Request) -> Answer:
        finish = Finish.REFUSED if self._refused else _FINISH.get(self._reason or "", Finish.STOP)
        received = [
            ToolCall(call.id, call.name, join_surrogates("".join(call.arguments)) or "{}") for call in self._calls
        ]
        # Incomplete calls are dropped and ids may change, so extra content is matched by order.
        extras = [
            partial.extra
            for partial, call in zip(self._calls, received, strict=True)
            if finish is not Finish.LENGTH or is_object(call.arguments)
        ]
        calls, finish = runnable_calls(received, finish, request.tail)
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
        thought = _StoredThought(content, self._details, self._extra, by_id)
        try:
            return None if thought == _StoredThought() else Thought(_JSON.encode(thought).decode())
        except UnicodeEncodeError:
            # A lone surrogate: it can't be sent back unchanged.
            return None


def _add_detail(details: list[_Extra], piece: _Extra) -> None:
    """Add a detail, or append to the texts of the one with the same index."""
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


def _usage(reported: _ChatUsage) -> Usage:
    cached = reported.prompt_tokens_details.cached_tokens if reported.prompt_tokens_details else None
    return Usage(
        input_tokens=reported.prompt_tokens or 0,
        output_tokens=reported.completion_tokens or 0,
        cached_tokens=cached or reported.prompt_cache_hit_tokens or 0,
        cost=reported.cost,
    )


# The client ---------------------------------------------------------------------------------------------------------


class OpenAICompat:
    """Client of one endpoint. `key_name` is the setting that errors about the key refer to. With `needs_key`, no
    request is sent without a key."""

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
        self._http = StreamingClient(
            base_url, sent, key=key, key_name=key_name, needs_key=needs_key, connect_s=connect_s, idle_s=idle_s
        )
        self._traits = traits or Traits()
        # OpenAI's newer models reject the old name of the limit; other endpoints know only that.
        host = urlsplit(base_url).hostname or ""
        is_openai = host == "api.openai.com" or host.endswith(".openai.azure.com")
        self._limit_name = "max_completion_tokens" if is_openai else "max_tokens"

    def traits(self, model: str) -> Traits:
        return self._traits

    def head(self, prompt: Prompt) -> bytes:
        start = _JSON.encode({"model": prompt.model, "stream": True, "stream_options": {"include_usage": True}})
        tools = b',"tools":' + _JSON.encode([_schema(tool) for tool in prompt.tools]) if prompt.tools else b""
        system = _encode_message(Message(Role.SYSTEM, prompt.system)) + b"," if prompt.system else b""
        return start[:-1] + tools + b',"messages":[' + system

    def encode(self, messages: Sequence[Message]) -> bytes:
        return b",".join(_encode_message(message) for message in messages if not _is_empty(message))

    def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        return self._http.answer("/chat/completions", self._body(request), _ChatReader(), request)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _body(self, request: Request) -> tuple[bytes, ...]:
        first, *rest = request.tail
        if request.recall:
            first = replace(first, content=f"{first.content}\n\n{request.recall}")
        closing = f'],"{self._limit_name}":{request.output_tokens_max}}}'.encode()
        return request.head, request.history, b"," if request.history else b"", self.encode((first, *rest)), closing
