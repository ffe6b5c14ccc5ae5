"""Request validation of the stub server, modelled on the refusals of real endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from everthread.testing.model_server.replies import Fail, Protocol, ReasoningFormat, sign

_ID = re.compile(r"[A-Za-z0-9_-]+")


class Function(msgspec.Struct):
    name: str
    arguments: str


class Google(msgspec.Struct, frozen=True):
    thought_signature: str = ""


class ExtraContent(msgspec.Struct, frozen=True):
    google: Google = Google()


class Call(msgspec.Struct):
    id: str
    function: Function
    type: Literal["function"]
    extra_content: ExtraContent = ExtraContent()


class Detail(msgspec.Struct):
    type: Literal["reasoning.text", "reasoning.encrypted"]
    index: int
    text: str = ""
    signature: str = ""
    data: str = ""


class ChatMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[Call] = []
    tool_call_id: str | None = None
    reasoning_content: str = ""
    reasoning_details: list[Detail] = []


class Chat(msgspec.Struct):
    model: str
    messages: list[ChatMessage]
    stream: bool = False

    @property
    def has_tool_result(self) -> bool:
        return self.messages[-1].role == "tool"

    @property
    def last_user_text(self) -> str:
        """Last user message, including appended context."""
        return next((message.content or "" for message in reversed(self.messages) if message.role == "user"), "")


class Block(msgspec.Struct):
    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, object] | None = None
    tool_use_id: str = ""
    cache_control: dict[str, str] | None = None


class BlockMessage(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: list[Block]


class AnthropicTool(msgspec.Struct):
    name: str
    input_schema: dict[str, object]
    cache_control: dict[str, str] | None = None


class Messages(msgspec.Struct):
    model: str
    max_tokens: int
    messages: list[BlockMessage]
    system: list[Block] = []
    tools: list[AnthropicTool] = []
    stream: bool = False

    @property
    def has_tool_result(self) -> bool:
        return any(block.type == "tool_result" for block in self.messages[-1].content)

    @property
    def last_user_text(self) -> str:
        """Last user message, including appended context."""
        said = (block.text for one in reversed(self.messages) if one.role == "user" for block in one.content)
        return next((text for text in said if text), "")


def parse_request(protocol: Protocol, body: bytes, thinks: ReasoningFormat | None = None) -> Chat | Messages | Fail:
    """Parse and validate a request. Return the refusal if it is invalid, or if it omits the reasoning of a thinking
    model.
    """
    try:
        request = msgspec.json.decode(body, type=Chat if protocol is Protocol.CHAT else Messages)
    except (ValueError, RecursionError) as error:
        return Fail(400, str(error), "invalid_request_error")
    if isinstance(request, Chat):
        broken = _chat_problem(request) or _missing_chat_reasoning(request, thinks)
    else:
        broken = _messages_problem(request) or (_missing_messages_reasoning(request) if thinks else None)
    return Fail(400, broken, "invalid_request_error") if broken else request


def _chat_problem(chat: Chat) -> str | None:
    if not chat.messages:
        return "messages: there must be at least one"
    open_calls: set[str] = set()
    for number, message in enumerate(chat.messages):
        at = f"messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                return f"{at}: a message with role 'tool' must answer a tool call right before it"
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            return f"{at}: these tool calls have no answer yet: {', '.join(sorted(open_calls))}"
        elif not message.content and not message.tool_calls:
            return f"{at}: the content is empty"
        for call in message.tool_calls:
            if not _ID.fullmatch(call.function.name) or not _is_object(call.function.arguments):
                return f"{at}: the name or the arguments of a tool call are not valid"
            open_calls.add(call.id)
    return f"these tool calls have no answer: {', '.join(sorted(open_calls))}" if open_calls else None


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _messages_problem(request: Messages) -> str | None:
    if not request.messages or request.messages[0].role != "user":
        return "messages: the first one must be the user's"
    marks = [*request.system, *request.tools, *(block for one in request.messages for block in one.content)]
    if (count := sum(mark.cache_control is not None for mark in marks)) > 4:
        return f"a maximum of 4 blocks with cache_control may be provided, found {count}"
    open_calls: set[str] = set()
    for number, message in enumerate(request.messages):
        if broken := _blocks_problem(message.content, open_calls):
            return f"messages.{number}: {broken}"
        open_calls = {block.id for block in message.content if block.type == "tool_use"}
        if open_calls and message.role != "assistant":
            return f"messages.{number}: tool_use is the assistant's"
    return f"tool_use ids were found without tool_result blocks: {sorted(open_calls)}" if open_calls else None


def _blocks_problem(blocks: Sequence[Block], open_calls: set[str]) -> str | None:
    if not blocks:
        return "all messages must have non-empty content"
    if any(block.type == "text" and not block.text.strip() for block in blocks):
        return "text content blocks must contain non-whitespace text"
    if any(
        block.type == "tool_use" and not (_ID.fullmatch(block.id) and _ID.fullmatch(block.name)) for block in blocks
    ):
        return "the id or the name of a tool_use is not valid"
    answered = [block.tool_use_id for block in blocks if block.type == "tool_result"]
    if set(answered) != open_calls or len(answered) > len(open_calls):
        return f"tool_result blocks must answer the tool_use blocks right before them: {sorted(open_calls)}"
    if any(block.type != "tool_result" for block in blocks[: len(answered)]):
        return "tool_result blocks must come first"
    return None


# Reasoning is required for the current turn only. Earlier turns may omit it.


def _missing_chat_reasoning(chat: Chat, thinks: ReasoningFormat | None) -> str | None:
    begin = max(number for number, message in enumerate(chat.messages) if message.role == "user")
    for number, message in enumerate(chat.messages[begin:], begin):
        if message.tool_calls and thinks is not None and not _has_reasoning(message, thinks):
            return f"messages[{number}]: a message with tool calls must have its {thinks.value} as it was"
    return None


def _has_reasoning(message: ChatMessage, thinks: ReasoningFormat) -> bool:
    first = message.tool_calls[0]
    match thinks:
        case ReasoningFormat.SIGNATURE:
            return first.extra_content.google.thought_signature == sign(first.id)
        case ReasoningFormat.DETAILS:
            text, *sealed = message.reasoning_details or [Detail("reasoning.text", 0)]
            data = sign(text.text + text.text)
            return text.signature == sign(text.text) and [detail.data for detail in sealed] == [data]
        case _:
            return bool(message.reasoning_content)


def _missing_messages_reasoning(request: Messages) -> str | None:
    said = [any(block.type != "tool_result" for block in message.content) for message in request.messages]
    begin = max(number for number, message in enumerate(request.messages) if message.role == "user" and said[number])
    for number, message in enumerate(request.messages[begin:], begin):
        if any(block.type == "tool_use" for block in message.content):
            if message.content[0].type != "thinking":
                return f"messages.{number}: expected a thinking block before tool_use"
            thought, *others = (block for block in message.content if block.type in ("thinking", "redacted_thinking"))
            sealed = [block.data for block in others]
            if thought.signature != sign(thought.thinking) or sealed != [sign(thought.thinking * 2)]:
                return f"messages.{number}: thinking blocks must stay as they were in the answer"
    return None
