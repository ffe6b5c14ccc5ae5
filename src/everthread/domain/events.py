"""What a session's log says, as values. An event is built from stored rows when it is delivered, never before."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

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
        return self in _DIRTYING


_DIRTYING = (EntryKind.TURN, EntryKind.NOTE, EntryKind.DELEGATION, EntryKind.REWIND)


class LogEntry(Struct, frozen=True):
    """One row of a session's log: it refers to stored rows by `number` (a turn) and `detail` (everything else)."""

    ref: SessionRef
    seq: int
    kind: EntryKind
    at: float
    number: int | None = None
    detail: dict[str, object] | None = None


class View(Struct, frozen=True):
    """What a session shows: a summary of what came before, if there is one, then its visible turns."""

    summary: str | None
    turns: tuple[Turn, ...]


class SessionOpened(Struct, frozen=True):
    ref: SessionRef
    parent_id: str
    reset: bool
    reason: Cause


class TurnCommitted(Struct, frozen=True):
    ref: SessionRef
    turn: Turn


class NoteWritten(Struct, frozen=True):
    ref: SessionRef
    note: NoteVersion
    newest: int = 0
    """The newest version that there is of the note: sessions do not wait for each other, so this one may come late."""


class WorkDelegated(Struct, frozen=True):
    ref: SessionRef
    task: str
    result: str
    child_session_id: str


class SessionRewound(Struct, frozen=True):
    """The session shows these turns no more; a provider that kept them should let them go."""

    ref: SessionRef
    turns: tuple[int, ...]


class SessionClosed(Struct, frozen=True):
    """Everything up to `through_seq` was handed over before. `missing` lists entries that this provider rejected."""

    ref: SessionRef
    view: View
    through_seq: int
    missing: tuple[int, ...] = ()


class ForgetScope(StrEnum):
    SESSION = "session"
    OWNER = "owner"
    FACT = "fact"


class Forgotten(Struct, frozen=True):
    """Whatever was kept of this session, person or fact must go. `text` is the fact's, and only for a fact."""

    ref: SessionRef
    scope: ForgetScope
    text: str = ""
    note_id: str = ""


Event = SessionOpened | TurnCommitted | NoteWritten | WorkDelegated | SessionRewound | SessionClosed | Forgotten


class Delivery(Struct, frozen=True):
    """How an event comes: a provider that has seen `key` before must let it have no second effect."""

    key: str
    seq: int
    attempt: int = 1
    replay: int = 0
