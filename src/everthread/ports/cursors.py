"""The log, and how far each provider has come in it, as the store keeps them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.events import EntryKind, Event, LogEntry


class Cursor(Struct, frozen=True):
    """How far a provider has come in a session's log."""

    provider: str
    session_id: str
    seq: int
    replay: int = 0
    attempts: int = 0
    due_at: float | None = None
    error: str | None = None
    copy_to: int = 0
    """Up to here it is told the past as it stands now."""


class ToCopy(Struct, frozen=True):
    """A session that a provider was not told of from its beginning."""

    session_id: str
    entries: int
    turns: int
    characters: int
    is_at_rest: bool
    """Nothing of it waits for the provider."""


class Redelivery(Struct, frozen=True):
    """An entry outside its lane's order: parked (no `due_at`), or waiting to be delivered once more."""

    provider: str
    session_id: str
    seq: int
    replay: int
    error: str
    attempts: int = 0
    due_at: float | None = None


class ProviderRow(Struct, frozen=True):
    """What is known of a provider beyond its cursors: how far the logs were looked through, and its breaker."""

    name: str
    scanned_pos: int
    failures: int = 0
    open_until: float = 0.0
    last_error: str | None = None
    last_error_at: float | None = None


class LaneCount(Struct, frozen=True):
    """A provider's lag, for people."""

    waiting_entries: int
    waiting_sessions: int
    parked: int
    oldest_at: float | None = None
    """When the oldest entry that waits was written."""


class Log(Protocol):
    def append(self, entry: LogEntry) -> None: ...
    def entry(self, session_id: str, seq: int) -> LogEntry | None: ...
    def after(self, session_id: str, seq: int) -> LogEntry | None:
        """The next entry, if there is one."""
        ...

    def of_kind(self, session_id: str, kind: EntryKind) -> tuple[LogEntry, ...]: ...
    def last_close(self, session_id: str, up_to_seq: int) -> LogEntry | None: ...
    def event(self, entry: LogEntry, missing: tuple[int, ...], *, as_of_now: bool = False) -> Event:
        """What an entry tells; with `as_of_now`, a close leaves out what was taken back after it."""
        ...

    def is_taken_back(self, session_id: str, number: int) -> bool:
        """Whether the turn was hidden since."""
        ...

    def is_light(self, entry: LogEntry) -> bool:
        """Whether its event is read in microseconds."""
        ...

    def end(self) -> int:
        """The position of the newest entry of any log."""
        ...


class Cursors(Protocol):
    def register(self, provider: str) -> None:
        """A provider that was never here starts at the logs' ends."""
        ...

    def provider(self, name: str) -> ProviderRow | None: ...
    def providers(self) -> tuple[ProviderRow, ...]: ...
    def save_provider(self, row: ProviderRow) -> None: ...
    def discover(self, provider: str, now: float, limit: int) -> bool:
        """Make the lanes of new log entries due; true if there may be more of them."""
        ...

    def get(self, provider: str, session_id: str) -> Cursor | None: ...
    def save(self, cursor: Cursor) -> None: ...
    def due_sessions(self, provider: str, now: float, limit: int) -> tuple[str, ...]:
        """Sessions with something to deliver now, the longest waiting first."""
        ...

    def next_due(self, provider: str, after: float) -> float | None: ...
    def set_back(self, provider: str, session_id: str | None, now: float) -> int:
        """Start lanes again from their logs' beginnings under a new replay number; how many lanes."""
        ...

    def tell_again(self, provider: str, owner: str, now: float) -> int:
        """Start the lanes of an owner's conversations where each was first told from, under a new replay number; how
        many. What was forgotten is none of them.
        """
        ...

    def to_copy(self, provider: str, after: str, limit: int) -> tuple[ToCopy, ...]:
        """Sessions that the provider was not told of from the beginning, by their ids, from behind `after`."""
        ...

    def copy(self, provider: str, session_id: str, now: float) -> bool:
        """Start the lane of such a session at its log's beginning; false if it is none, or something of it waits."""
        ...

    def copying(self, provider: str) -> tuple[int, int]:
        """Sessions and entries that are left of the copies that were started."""
        ...

    def new_replay(self, provider: str, session_id: str) -> int: ...
    def add_redelivery(self, row: Redelivery) -> None: ...
    def redeliveries(self, provider: str, session_id: str | None = None) -> tuple[Redelivery, ...]: ...
    def drop_redelivery(self, row: Redelivery) -> None: ...
    def bring_forward(self, provider: str, now: float, latest: float) -> None:
        """What waits for a time after `latest` waits no longer: lanes, redeliveries and the breaker."""
        ...

    def parked(self, provider: str, session_id: str) -> tuple[int, ...]: ...
    def count(self, provider: str) -> LaneCount: ...
