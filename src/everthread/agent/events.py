"""What a front end is told while a turn runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from everthread.domain.model import SessionRef, ToolCall
from everthread.lifecycle import Committed
from everthread.ports import RecallItem
from everthread.ports.model import Usage


class TurnBegan(Struct, frozen=True):
    ref: SessionRef
    turn_id: str
    text: str
    recovered: bool


class Recalled(Struct, frozen=True):
    items: tuple[RecallItem, ...]
    missing: tuple[str, ...]


class TextWritten(Struct, frozen=True):
    text: str


class ReasoningWritten(Struct, frozen=True):
    text: str


class Retrying(Struct, frozen=True):
    """The model is asked again. What it had written of this answer counts no more."""

    why: str
    model: str
    wait_s: float


class ToolBegan(Struct, frozen=True):
    call: ToolCall


class ToolEnded(Struct, frozen=True):
    call: ToolCall
    result: str


class Steered(Struct, frozen=True):
    text: str


class TurnEnded(Struct, frozen=True):
    """The turn is stored. `text` is the answer; `problem` says in one line why there is none, or only a part."""

    committed: Committed
    text: str
    problem: str = ""
    error: Exception | None = None
    """What the problem is, if it was an error."""
    model: str = ""
    """The one that answered."""
    usage: Usage = Usage()
    context_tokens: int = 0
    """How much of the model's window was taken in the end; 0 if it did not say."""


TurnEvent = (
    TurnBegan | Recalled | TextWritten | ReasoningWritten | Retrying | ToolBegan | ToolEnded | Steered | TurnEnded
)

Listen = Callable[[TurnEvent], None]
"""Must return at once; one that raises ends the turn."""

Approve = Callable[[ToolCall, SessionRef], Awaitable[bool]]
"""Asks whoever may decide about a dangerous call."""


async def nobody_approves(call: ToolCall, ref: SessionRef) -> bool:
    """Where there is nobody to ask."""
    return False
