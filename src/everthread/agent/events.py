"""What a front end is told while a turn runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.review_window import Window
from everthread.lifecycle import Committed, TurnClaim
from everthread.ports.memory import RecallItem
from everthread.ports.model import Usage


class TurnBegan(Struct, frozen=True):
    ticket: TurnClaim
    recovered: bool

    @property
    def ref(self) -> SessionRef:
        return self.ticket.ref

    @property
    def text(self) -> str:
        return self.ticket.message.inbound.text


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
    inbox_id: int


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


class Compressing(Struct, frozen=True):
    """The next answer has to wait until the conversation is compressed."""

    @property
    def text(self) -> str:
        return "This conversation is almost too long for the model; it is compressed before the next answer ..."


class Compressed(Struct, frozen=True):
    """The conversation goes on in a session of its own, with a summary in place of `turns` turns."""

    ref: SessionRef
    """Where it goes on."""
    turns: int
    tokens_before: int
    tokens_after: int
    instead_because: str = ""
    """Why there is a mechanical extract in place of a summary, if there is."""

    @property
    def text(self) -> str:
        count = f"{self.turns:,} turn{'' if self.turns == 1 else 's'}"
        into = "a mechanical extract" if self.instead_because else "a summary"
        because = f"; no summary could be made: {self.instead_because}" if self.instead_because else ""
        size = f"about {self.tokens_before:,} tokens before, {self.tokens_after:,} now"
        return f"Compressed: {count} into {into} ({size}{because})"


class CompressionFailed(Struct, frozen=True):
    """The conversation is as it was. `text` says why, and when it is tried again."""

    text: str


CompressionEvent = Compressing | Compressed | CompressionFailed
"""May also come between two turns."""

REVIEW_NAMES_MAX = 3


class Reviewed(Struct, frozen=True):
    """A background review has written something down. It is part of no turn, and may be about another conversation."""

    ref: SessionRef
    """The session that it is about."""
    window: Window
    wrote: tuple[str, ...]
    """Each in a few words."""
    missing: tuple[str, ...] = ()
    """What found no room among the notes, in the same way."""

    @property
    def text(self) -> str:
        noted = f"Review noted: {_named(self.wrote)}. /memory log shows it, /memory undo takes it back."
        parts = [noted] if self.wrote else []
        if self.missing:
            parts.append(f"{NO_ROOM}: {_named(self.missing)}. {MORE_ROOM}.")
        return " ".join(parts)


NO_ROOM = "A review found no room among the notes for"
MORE_ROOM = "Remove notes you have no use for, or raise memory.notes_chars or memory.user_chars"


def _named(things: Sequence[str]) -> str:
    more = len(things) - REVIEW_NAMES_MAX
    return "; ".join(things[:REVIEW_NAMES_MAX]) + (f"; and {more} more" if more > 0 else "")


TurnEvent = (
    TurnBegan
    | Recalled
    | TextWritten
    | ReasoningWritten
    | Retrying
    | ToolBegan
    | ToolEnded
    | Steered
    | TurnEnded
    | CompressionEvent
    | Reviewed
)

Listen = Callable[[TurnEvent], None]
"""Must return at once; one that raises ends the turn."""

Approve = Callable[[ToolCall, SessionRef], Awaitable[bool]]
"""Asks whoever may decide about a dangerous call. `NotApproved` is a no that says why."""


async def nobody_approves(call: ToolCall, ref: SessionRef) -> bool:
    """Where there is nobody to ask."""
    return False
