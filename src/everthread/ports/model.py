"""What a turn needs from a model: one request, one streamed answer.

A request is made of bytes that were serialised before (`head` and `history`) and the few messages that are new. So a
turn costs the sending of its history, never the walking of it, and what was sent before is sent again byte for byte.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from everthread.domain.model import Message


class ToolSchema(Struct, frozen=True):
    """A tool as the model is told of it. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Prompt(Struct, frozen=True):
    """The frozen start of a session's requests: what a prefix stores."""

    model: str
    """As the endpoint calls it."""
    system: str
    tools: tuple[ToolSchema, ...] = ()


class Traits(Struct, frozen=True):
    """What a model can do; declared, never probed for."""

    tools: bool = True
    context_tokens: int = 128_000
    small: bool = False
    """It gets the short prompt."""


class Request(Struct, frozen=True):
    head: bytes
    """Made by `head`."""
    history: bytes
    """Made by `encode`, one piece per turn, joined by commas."""
    tail: tuple[Message, ...]
    """The turn's own messages so far; the first is the user's."""
    recall: str = ""
    """Sent right behind the first message of the tail; stored nowhere."""
    output_tokens_max: int = 8192


class Finish(StrEnum):
    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


class Usage(Struct, frozen=True):
    input_tokens: int = 0
    """All of them, cached ones included."""
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In dollars, from endpoints that say so."""


class Delta(Struct, frozen=True):
    """A piece of an answer that is being written."""

    text: str = ""
    reasoning: str = ""


class Answer(Struct, frozen=True):
    """A whole answer: the last thing that a stream yields.

    `finish` is `TOOLS` if and only if the message has tool calls; their ids are unique among those of the tail, their
    arguments are what the model wrote, which need not be JSON.
    """

    message: Message
    usage: Usage
    finish: Finish


class ModelClient(Protocol):
    """One endpoint. Raises `ModelError` and nothing else; closing the stream early closes the connection."""

    def traits(self, model: str) -> Traits: ...

    def head(self, prompt: Prompt) -> bytes:
        """The request up to its first message. The same prompt gives the same bytes."""
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Whole turns as they go into a request's list of messages, without a comma at either end."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        """Deltas, then one `Answer`. Whoever may stop earlier wraps it in `aclosing`."""
        ...

    async def aclose(self) -> None: ...
