"""Request and response types of the chat completions API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from everthread.domain.model import Message, Role, ToolCall, whole
from everthread.ports.model import Finish, ToolSchema, Usage
from everthread.web.errors import HttpError

MESSAGES_MAX = 10_000
TOOLS_MAX = 512
MODEL_CHARS_MAX = 256
OUR_MODELS = ("everthread", "everthread/default")
"""Names of the configured model, for clients that require one."""

# --- Requests -------------------------------------------------------------------------------------------------------


class Part(Struct):
    type: str
    text: str | None = None


class FunctionCall(Struct):
    name: str
    arguments: str = "{}"


class Called(Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None


class Function(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolGiven(Struct):
    function: Function
    type: Literal["function"] = "function"


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatRequest(Struct):
    """What is not named here is ignored."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    model: Annotated[str, Meta(max_length=MODEL_CHARS_MAX)] = OUR_MODELS[0]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[ToolGiven], Meta(max_length=TOOLS_MAX)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, Any] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def check(asked: ChatRequest) -> None:
    """Refuse parameters that would change the meaning of the answer and are not supported."""
    cannot = {
        "n": asked.n not in (None, 1),
        "stop": bool(asked.stop),
        "response_format": asked.response_format is not None and asked.response_format.get("type") != "text",
        "logprobs": bool(asked.logprobs),
        "logit_bias": bool(asked.logit_bias),
        "functions": bool(asked.functions),
        "modalities": asked.modalities not in (None, ["text"]),
        "tool_choice": asked.tool_choice not in (None, "auto", "none"),
    }
    for name, given in cannot.items():
        if given:
            raise HttpError(400, f"{name} can't be had here with this value; leave it out", "unsupported_parameter")


def text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        if any(part.type != "text" for part in message.content):
            raise HttpError(400, "only text can be sent, no images and the like", "unsupported_content")
        return whole("".join(part.text or "" for part in message.content))
    return whole(message.content or "")


def last_user_text(asked: ChatRequest) -> str:
    """Return the text of the last user message."""
    for message in reversed(asked.messages):
        if message.role == "user":
            if not (text := text_of(message)).strip():
                raise HttpError(400, "the last message of the user is empty", "bad_request")
            return text
    raise _nobody_asks()


def to_messages(asked: ChatRequest) -> tuple[str, list[Message]]:
    """Return the system prompt and the other messages as domain values."""
    system = [text_of(message) for message in asked.messages if message.role in ("system", "developer")]
    messages = [_message(message) for message in asked.messages if message.role not in ("system", "developer")]
    if not any(message.role is Role.USER for message in messages):
        raise _nobody_asks()
    return "\n\n".join(text for text in system if text), messages


def tools_of(asked: ChatRequest) -> tuple[ToolSchema, ...]:
    if asked.tool_choice == "none":
        return ()
    given = (tool.function for tool in asked.tools or ())
    return tuple(ToolSchema(one.name, one.description or "", one.parameters or {}) for one in given)


def _message(message: ChatMessage) -> Message:
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    if message.role == "tool" and not message.tool_call_id:
        raise HttpError(400, "a message of a tool needs its tool_call_id", "bad_request")
    return Message(Role(message.role), text_of(message), calls, message.tool_call_id)


def _nobody_asks() -> HttpError:
    return HttpError(400, "messages has no message of the user", "bad_request")


# --- Responses -----------------------------------------------------------------------------------------------------


class UsageSaid(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MessageSaid(Struct):
    content: str | None
    role: Literal["assistant"] = "assistant"
    tool_calls: list[dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET


class ChoiceSaid(Struct):
    message: MessageSaid
    finish_reason: str
    index: int = 0
    logprobs: None = None


class Completion(Struct):
    id: str
    created: int
    model: str
    choices: list[ChoiceSaid]
    usage: UsageSaid
    object: Literal["chat.completion"] = "chat.completion"


class Delta(Struct, omit_defaults=True):
    role: str = ""
    content: str = ""
    tool_calls: list[dict[str, Any]] = []


class ChoiceDelta(Struct):
    delta: Delta
    finish_reason: str | None = None
    index: int = 0


class Chunk(Struct):
    id: str
    created: int
    model: str
    choices: list[ChoiceDelta]
    usage: UsageSaid | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


def encode_usage(usage: Usage) -> UsageSaid:
    return UsageSaid(usage.input_tokens, usage.output_tokens, usage.input_tokens + usage.output_tokens)


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
