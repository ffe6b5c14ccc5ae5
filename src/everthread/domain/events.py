"""What a session's log says, as values. An event is built from stored rows when it is delivered, never before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from everthread.domain.model import Cause, NoteVersion, SessionRef, Turn


class EntryKind(StrEnum):
    OPENED = "opened"
    TURN = "turn"
    NOTE = "note"
    DELEGATION = "delegation"
    REWIND = "rewind"
    CLOSE = "close"
    FORGET = "forget"

    @property
    def dirties(self) -> bool:
        """Something to remember: a session with one of these after its last close must be closed again."""
        return self in (EntryKind.TURN, EntryKind.NOTE, EntryKind.DELEGATION, EntryKind.REWIND)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One row of a session's log: it refers to stored rows by `number` (a turn) and `detail` (everything else)."""

    ref: SessionRef
    seq: int
    kind: EntryKind
    at: float
    number: int | None = None
    detail: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What a session shows: a summary of what came before, if there is one, then its visible turns."""

    summary: str | None
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    ref: SessionRef
    parent_id: str
    reset: bool
    reason: Cause


@dataclass(frozen=True, slots=True)
class TurnCommitted:
    ref: SessionRef
    turn: Turn


@dataclass(frozen=True, slots=True)
class NoteWritten:
    ref: SessionRef
    note: NoteVersion


@dataclass(frozen=True, slots=True)
class WorkDelegated:
    ref: SessionRef
    task: str
    result: str
    child_session_id: str


@dataclass(frozen=True, slots=True)
class SessionRewound:
    """The session shows these turns no more; a provider that kept them should let them go."""

    ref: SessionRef
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """Everything up to `through_seq` was handed over before. `missing` lists entries that this provider rejected."""

    ref: SessionRef
    view: View
    through_seq: int
    missing: tuple[int, ...] = ()


class ForgetScope(StrEnum):
    SESSION = "session"
    OWNER = "owner"
    FACT = "fact"


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Whatever was kept of this session, person or fact must go. `text` is the fact's, and only for a fact."""

    ref: SessionRef
    scope: ForgetScope
    text: str = ""
    note_id: str = ""


Event = SessionOpened | TurnCommitted | NoteWritten | WorkDelegated | SessionRewound | SessionClosed | Forgotten


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an event comes: a provider that has seen `key` before must let it have no second effect."""

    key: str
    seq: int
    attempt: int = 1
    replay: int = 0
