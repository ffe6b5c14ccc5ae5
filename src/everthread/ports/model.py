"""Model endpoints: one request, one streamed answer.

A request consists of bytes that were serialised before (`head` and `history`) and a few new messages. A turn sends its
history without serialising it again, and repeats earlier requests byte for byte, as prompt caches need.

Test a client with `everthread.testing.contracts.model_client.ModelContract`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from everthread.domain.model import Message


class ToolSchema(Struct, frozen=True):
    """A tool as described to the model. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Prompt(Struct, frozen=True):
    """The fixed beginning of a session's requests; stored as its prefix."""

    model: str
    """The endpoint's name of the model."""
    system: str
    tools: tuple[ToolSchema, ...] = ()


class Traits(Struct, frozen=True):
    """Abilities of a model; declared, never probed for."""

    tools: bool = True
    context_tokens: int = 128_000
    small: bool = False
    """The model gets the short prompt."""


class Request(Struct, frozen=True):
    head: bytes
    """Encoded by `ModelClient.head`."""
    history: bytes
    """Encoded by `ModelClient.encode`, one piece per turn, joined by commas."""
    tail: tuple[Message, ...]
    """The current turn's messages so far; the first is the user's."""
    recall: str = ""
    """Sent after the first message of the tail; never stored."""
    output_tokens_max: int = 8192


class Finish(StrEnum):
    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"
    REFUSED = "refused"


class Usage(Struct, frozen=True):
    input_tokens: int = 0
    """Includes cached tokens."""
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In dollars, if the endpoint reports it."""


class Delta(Struct, frozen=True):
    """A piece of a streamed answer."""

    text: str = ""
    reasoning: str = ""


class Answer(Struct, frozen=True):
    """A complete answer; the last item of a stream.

    `finish` is `TOOLS` if and only if the message has tool calls. Their ids are unique within the tail; their arguments
    are the model's text, which may be invalid JSON.
    """

    message: Message
    usage: Usage
    finish: Finish


class ModelClient(Protocol):
    """One endpoint. Raises only `ModelError`. Closing the stream early closes the connection."""

    def traits(self, model: str) -> Traits: ...

    def head(self, prompt: Prompt) -> bytes:
        """Encode the request up to its first message. The same prompt gives the same bytes."""
        ...

    def encode(self, messages: Sequence[Message]) -> bytes:
        """Encode whole turns for a request's list of messages, without a comma at either end."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        """Yield deltas, then one `Answer`. Wrap it in `aclosing` if you may stop early."""
        ...

    async def aclose(self) -> None: ...
