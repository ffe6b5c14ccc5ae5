"""Operations on the lifecycle, as reported to the reference model."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.domain.boundary import Boundary
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.review_window import Review, ReviewState
from everthread.lifecycle import NoteChange, NoteRewrite, TurnClaim
from everthread.lifecycle.forget import Forgettable


@dataclass(frozen=True, slots=True)
class Accept:
    key: SessionKey
    text: str
    owner: str


@dataclass(frozen=True, slots=True)
class Begin:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Commit:
    claim: TurnClaim
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """Release a turn. A cancelled turn is settled; a live one stays for another process."""

    claim: TurnClaim


@dataclass(frozen=True, slots=True)
class Cross:
    key: SessionKey
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class ExpireDue:
    """Cross the boundaries of due timers."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Settle late and hidden turns of dead processes."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Resume a turn of a dead process."""


@dataclass(frozen=True, slots=True)
class LowerTimes:
    """Replace the times of sessions that are after `latest` by `now`, because the clock was set back."""

    now: float
    latest: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut down a process."""

    holder: str
    close_memory: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Write a note. Without a ref, it belongs to the owner and no session."""

    ref: SessionRef | None
    owner: str
    change: NoteChange
    review: Review | None = None
    """The review that writes the note, if any."""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replace a collection of notes by fewer and shorter ones, in a review."""

    ref: SessionRef
    owner: str
    rewriting: NoteRewrite
    review: Review
    holder: str


@dataclass(frozen=True, slots=True)
class Delegate:
    ref: SessionRef
    text: str
    child: str


@dataclass(frozen=True, slots=True)
class ForgetOperation:
    what: Forgettable
    owner: str


@dataclass(frozen=True, slots=True)
class PutPrefix:
    """Store the start of a session's prompt."""

    owner: str


@dataclass(frozen=True, slots=True)
class SyncNotes:
    """Synchronise the note files of an owner with the store."""

    owner: str


@dataclass(frozen=True, slots=True)
class EndReview:
    """Record the outcome of a review."""

    review: Review
    ref: SessionRef
    state: ReviewState


@dataclass(frozen=True, slots=True)
class TakeReview:
    """Claim the next due review."""

    holder: str
