"""Request and response types of the chat completions API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from everthread.domain.model import Message, Role, ToolCall, replace_surrogates
from everthread.ports.model import Finish, ToolSchema, Usage
from everthread.web.errors import HttpError
from everthread.web.responses import DONE, encode_event

MESSAGES_MAX = 10_000
TOOLS_MAX = 512
MODEL_CHARS_MAX = 256
OUR_MODELS = ("everthread", "everthread/default")
"""Names of the configured model, for clients that require one."""

# --- Requests -------------------------------------------------------------------------------------------------------


class ContentPart(Struct):
    type: str
    text: str | None = None


class FunctionCall(Struct):
    name: str
    arguments: str = "{}"


class RequestToolCall(Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class RequestMessage(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[RequestToolCall] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolDefinition(Struct):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatRequest(Struct):
    """A request for a completion. Other fields are ignored."""

    messages: Annotated[list[RequestMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    model: Annotated[str, Meta(max_length=MODEL_CHARS_MAX)] = OUR_MODELS[0]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, Any] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None


def check_supported(request: ChatRequest) -> None:
    """Refuse parameters that would change the meaning of the answer and are not supported."""
    unsupported = {
        "n": request.n not in (None, 1),
        "stop": bool(request.stop),
        "response_format": request.response_format is not None and request.response_format.get("type") != "text",
        "logprobs": bool(request.logprobs),
        "logit_bias": bool(request.logit_bias),
        "functions": bool(request.functions),
        "modalities": request.modalities not in (None, ["text"]),
        "tool_choice": request.tool_choice not in (None, "auto", "none"),
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise HttpError(400, f"{name} is not supported with this value; omit it.", "unsupported_parameter")


def text_of(message: RequestMessage) -> str:
    if isinstance(message.content, list):
        if any(part.type != "text" for part in message.content):
            raise HttpError(400, "Only text content is supported.", "unsupported_content")
        return replace_surrogates("".join(part.text or "" for part in message.content))
    return replace_surrogates(message.content or "")


def last_user_text(request: ChatRequest) -> str:
    """Return the text of the last user message."""
    for message in reversed(request.messages):
        if message.role == "user":
            if not (text := text_of(message)).strip():
                raise HttpError(400, "The last user message is empty.", "bad_request")
            return text
    raise _no_user_message()


def to_messages(request: ChatRequest) -> tuple[str, list[Message]]:
    """Return the system prompt and the other messages as domain values."""
    system = [text_of(message) for message in request.messages if message.role in ("system", "developer")]
    messages = [_message(message) for message in request.messages if message.role not in ("system", "developer")]
    if not any(message.role is Role.USER for message in messages):
        raise _no_user_message()
    return "\n\n".join(text for text in system if text), messages


def tools_of(request: ChatRequest) -> tuple[ToolSchema, ...]:
    if request.tool_choice == "none":
        return ()
    functions = (tool.function for tool in request.tools or ())
    return tuple(ToolSchema(one.name, one.description or "", one.parameters or {}) for one in functions)


def _message(message: RequestMessage) -> Message:
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    if message.role == "tool" and not message.tool_call_id:
        raise HttpError(400, "A tool message needs a tool_call_id.", "bad_request")
    return Message(Role(message.role), text_of(message), calls, message.tool_call_id)


def _no_user_message() -> HttpError:
    return HttpError(400, "messages must contain a user message.", "bad_request")


# --- Responses -----------------------------------------------------------------------------------------------------


class CompletionUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionMessage(Struct):
    content: str | None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class CompletionChoice(Struct):
    message: CompletionMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class Completion(Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    object: Literal["chat.completion"] = "chat.completion"


class ChunkDelta(Struct, omit_defaults=True):
    role: str = ""
    content: str = ""
    tool_calls: list[dict[str, Any]] = []


class ChunkChoice(Struct):
    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0


class Chunk(Struct):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


def encode_tool_calls(calls: tuple[ToolCall, ...], *, numbered: bool = False) -> list[dict[str, Any]]:
    return [
        ({"index": index} if numbered else {})
        | {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for index, call in enumerate(calls)
    ]


FINISH = {
    Finish.STOP: "stop",
    Finish.TOOLS: "tool_calls",
    Finish.LENGTH: "length",
    Finish.REFUSED: "content_filter",
}


class CompletionWriter:
    """Writes one answer in the format of the OpenAI API: whole, or in chunks."""

    def __init__(self, new_id: str, now: float, request: ChatRequest) -> None:
        self.id = f"chatcmpl-{new_id}"
        self._created = int(now)
        self._wants_usage = request.stream_options is not None and bool(request.stream_options.include_usage)

    def whole(self, model: str, text: str, finish: str, usage: Usage, calls: tuple[ToolCall, ...] = ()) -> Completion:
        message = CompletionMessage(
            text or (None if calls else ""), tool_calls=encode_tool_calls(calls) or msgspec.UNSET
        )
        return Completion(self.id, self._created, model, [CompletionChoice(message, finish)], _encode_usage(usage))

    def chunk(self, model: str, delta: ChunkDelta, finish: str | None = None) -> bytes:
        return encode_event(Chunk(self.id, self._created, model, [ChunkChoice(delta, finish)]))

    def end(self, model: str, finish: str, usage: Usage) -> bytes:
        """Encode the last events of a stream."""
        last = self.chunk(model, ChunkDelta(), finish)
        if self._wants_usage:
            last += encode_event(Chunk(self.id, self._created, model, [], _encode_usage(usage)))
        return last + DONE


def _encode_usage(usage: Usage) -> CompletionUsage:
    return CompletionUsage(usage.input_tokens, usage.output_tokens, usage.input_tokens + usage.output_tokens)
