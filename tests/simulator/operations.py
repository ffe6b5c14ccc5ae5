"""What is asked of the lifecycle in a simulated town, as the model is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.domain.boundary import Boundary
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.review_window import Review
from everthread.lifecycle import NoteChange, Rewriting, TurnClaim
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
    ticket: TurnClaim
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Abandon:
    """A turn is given back: a cancelled one is settled, a live one stays what it is, for somebody else."""

    ticket: TurnClaim


@dataclass(frozen=True, slots=True)
class Cross:
    key: SessionKey
    boundary: Boundary


@dataclass(frozen=True, slots=True)
class Recover:
    """Late and hidden turns of dead processes are settled."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A turn of a dead process is gone on with."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A process says goodbye."""

    holder: str
    close_memory: bool


@dataclass(frozen=True, slots=True)
class Note:
    """With no ref it concerns the person and no conversation."""

    ref: SessionRef | None
    owner: str
    change: NoteChange
    review: Review | None = None
    """The one that writes it, if one does."""
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A review puts fewer and shorter notes in the place of a collection."""

    ref: SessionRef
    owner: str
    rewriting: Rewriting
    review: Review
    holder: str


@dataclass(frozen=True, slots=True)
class Delegate:
    ref: SessionRef
    text: str
    child: str


@dataclass(frozen=True, slots=True)
class Forgetting:
    what: Forgettable
    owner: str


@dataclass(frozen=True, slots=True)
class TakeReview:
    """A process takes the next review that is due."""

    holder: str
