"""Log entries of a session, and the events that memory providers receive.

An event is built from stored rows on delivery, not before.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from everthread.domain.model import Cause, NoteVersion, SessionRef, Turn


class EntryKind(StrEnum):
    """The kind of a log entry."""

    OPENED = "opened"
    TURN = "turn"
    NOTE = "note"
    DELEGATION = "delegation"
    REWIND = "rewind"
    CLOSE = "close"
    FORGET = "forget"

    @property
    def dirties(self) -> bool:
        """Return True if the entry makes its session dirty: the session has to be closed again."""
        return self in _DIRTYING


_DIRTYING = (EntryKind.TURN, EntryKind.NOTE, EntryKind.DELEGATION, EntryKind.REWIND)


class LogEntry(Struct, frozen=True):
    """One row of a session's log. It refers to stored rows by `number` (a turn) and `detail` (all other rows)."""

    ref: SessionRef
    seq: int
    kind: EntryKind
    at: float
    number: int | None = None
    detail: dict[str, object] | None = None


class View(Struct, frozen=True):
    """The visible content of a session: the summary of earlier turns, if any, then the visible turns."""

    summary: str | None
    turns: tuple[Turn, ...]


class SessionOpened(Struct, frozen=True):
    """A session was created or reopened. `reset` is True if it starts empty."""

    ref: SessionRef
    parent_id: str
    reset: bool
    reason: Cause


class TurnCommitted(Struct, frozen=True):
    """A turn was stored."""

    ref: SessionRef
    turn: Turn


class NoteWritten(Struct, frozen=True):
    """A note was added, replaced or removed."""

    ref: SessionRef
    note: NoteVersion
    newest: int = 0
    """The newest version of the note. The event may be older, because sessions are delivered independently."""


class WorkDelegated(Struct, frozen=True):
    """A subagent has finished a task of the session."""

    ref: SessionRef
    task: str
    result: str
    child_session_id: str


class SessionRewound(Struct, frozen=True):
    """These turns were hidden. A provider that stored them should delete them."""

    ref: SessionRef
    turns: tuple[int, ...]


class SessionClosed(Struct, frozen=True):
    """The session's memory is closed: all entries up to `through_seq` were delivered.

    `missing` lists the entries that this provider rejected.
    """

    ref: SessionRef
    view: View
    through_seq: int
    missing: tuple[int, ...] = ()


class ForgetScope(StrEnum):
    """The extent of a forget request."""

    SESSION = "session"
    OWNER = "owner"
    FACT = "fact"


class Forgotten(Struct, frozen=True):
    """Delete all stored data of this session, owner or fact. `text` is the text of the fact, and empty otherwise."""

    ref: SessionRef
    scope: ForgetScope
    text: str = ""
    note_id: str = ""


Event = SessionOpened | TurnCommitted | NoteWritten | WorkDelegated | SessionRewound | SessionClosed | Forgotten


class Delivery(Struct, frozen=True):
    """Delivery data of an event. `key` is an idempotency key: a repeated event must have no second effect."""

    key: str
    seq: int
    attempt: int = 1
    replay: int = 0
