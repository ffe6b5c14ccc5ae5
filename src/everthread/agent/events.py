"""Events that a front end receives while a turn runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from everthread.domain.errors import NobodyToAsk
from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.review_window import ReviewWindow
from everthread.lifecycle import CommittedTurn, TurnClaim
from everthread.ports.memory import RecallItem
from everthread.ports.model import Usage


class TurnBegan(Struct, frozen=True):
    claim: TurnClaim
    recovered: bool

    @property
    def ref(self) -> SessionRef:
        return self.claim.ref

    @property
    def text(self) -> str:
        return self.claim.message.inbound.text


class Recalled(Struct, frozen=True):
    items: tuple[RecallItem, ...]
    missing: tuple[str, ...]


class TextWritten(Struct, frozen=True):
    text: str


class ReasoningWritten(Struct, frozen=True):
    text: str


class Retrying(Struct, frozen=True):
    """The model is called again. Discard the text of the failed attempt."""

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
    """The turn is stored. `text` is the answer; `problem` is one line on why it is missing or incomplete."""

    committed: CommittedTurn
    text: str
    problem: str = ""
    error: Exception | None = None
    """The error that caused the problem, if there was one."""
    model: str = ""
    """The model that answered."""
    usage: Usage = Usage()
    context_tokens: int = 0
    """Tokens of the context window in use at the end; 0 if the model did not report them."""


class Compressing(Struct, frozen=True):
    """The next answer waits for a compression."""

    @property
    def text(self) -> str:
        return "This conversation is almost too long for the model; it is compressed before the next answer ..."


class Compressed(Struct, frozen=True):
    """The conversation continues in a new session, with a summary in place of `turns` turns."""

    ref: SessionRef
    """The new session."""
    turns: int
    tokens_before: int
    tokens_after: int
    instead_because: str = ""
    """The reason for a mechanical extract in place of a summary; empty for a summary."""

    @property
    def text(self) -> str:
        count = f"{self.turns:,} turn{'' if self.turns == 1 else 's'}"
        into = "a mechanical extract" if self.instead_because else "a summary"
        because = f"; no summary could be made: {self.instead_because}" if self.instead_because else ""
        size = f"about {self.tokens_before:,} tokens before, {self.tokens_after:,} now"
        return f"Compressed: {count} into {into} ({size}{because})"


class CompressionFailed(Struct, frozen=True):
    """The conversation is unchanged. `text` gives the reason and the time of the next attempt."""

    text: str


CompressionEvent = Compressing | Compressed | CompressionFailed
"""May also be emitted between two turns."""

REVIEW_NAMES_MAX = 3


class Reviewed(Struct, frozen=True):
    """A background review has written notes or skills. It belongs to no turn and may concern another conversation."""

    ref: SessionRef
    """The reviewed session."""
    window: ReviewWindow
    wrote: tuple[str, ...]
    """A few words for each note or skill written."""
    missing: tuple[str, ...] = ()
    """A few words for each note that did not fit."""

    @property
    def text(self) -> str:
        noted = f"Review noted: {_join_names(self.wrote)}. /memory log shows it, /memory undo reverts it."
        parts = [noted] if self.wrote else []
        if self.missing:
            parts.append(f"{NO_ROOM}: {_join_names(self.missing)}. {MORE_ROOM}.")
        return " ".join(parts)


NO_ROOM = "The notes are full; a review could not add"
MORE_ROOM = "Remove notes that you do not need, or raise memory.notes_chars or memory.user_chars"


def _join_names(things: Sequence[str]) -> str:
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
"""Event listener. It must not block; an exception ends the turn."""


class ApprovalRequest(Struct, frozen=True):
    """A tool call that the user decides on."""

    call: ToolCall
    text: str
    """The whole call on limited lines, without invisible characters: show it as it is."""
    notice: str = ""
    """A change of the tool that the user must know of before they decide."""
    refusal: str = ""
    """Reason why the call is refused without a question. Show it to the user; the answer is ignored."""

    @property
    def description(self) -> str:
        return f"{self.notice}\n{self.text}" if self.notice else self.text


Approve = Callable[[ApprovalRequest, SessionRef], Awaitable[bool]]
"""Ask the user to approve a dangerous call. Raises `NobodyToAsk` if no user is present, and `NotApproved` for a refusal
with another reason.
"""


async def nobody_approves(request: ApprovalRequest, ref: SessionRef) -> bool:
    """Refuse every call: no user is present to approve it."""
    raise NobodyToAsk
