"""The store: one unit of work is one transaction.

A unit of work is a plain function that is handed a `UnitOfWork`. It may be run again if its transaction had to be
repeated, so it must touch nothing but what it is handed. Its result is given to the caller after the commit is durable.

All tables behind one connection: what a unit of work is handed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from everthread.store.api_keys import Tokens, TokenTables
from everthread.store.archive import ArchiveTables
from everthread.store.cursors import Cursor, Cursors, CursorTables, LaneCount, Log, ProviderRow, Redelivery, ToCopy
from everthread.store.erasure import Archive, Forgetting, ForgettingTables
from everthread.store.event_log import LogTables, News, NewsTables
from everthread.store.inbox import Inbox, InboxTables, Slots, SlotTables, Spend, SpendTables
from everthread.store.leases import Incident, LaneRows, LaneTables, QueuedHook
from everthread.store.notes import Notes, NoteTables
from everthread.store.pairings import AccessRows, AccessTables
from everthread.store.reviews import Rest, Rests, RestTables, ReviewRow, Reviews, ReviewTables
from everthread.store.schedules import Schedules, ScheduleTables
from everthread.store.sessions import BoundaryRow, Sessions, SessionTables, Whereabouts
from everthread.store.sql import Execute, at_once
from everthread.store.turns import Hit, Turns, TurnTables

T = TypeVar("T")

__all__ = [
    "Archive",
    "BoundaryRow",
    "Contents",
    "Cursor",
    "Cursors",
    "Examined",
    "Forgetting",
    "Hit",
    "Inbox",
    "Incident",
    "LaneCount",
    "LaneRows",
    "Log",
    "Notes",
    "ProviderRow",
    "QueuedHook",
    "Redelivery",
    "Rest",
    "Rests",
    "ReviewRow",
    "Reviews",
    "Sessions",
    "Slots",
    "Spend",
    "Store",
    "ToCopy",
    "Turns",
    "UnitOfWork",
    "Whereabouts",
]


class Examined(Struct, frozen=True):
    """What an examination of a store has found."""

    engine: str
    """What keeps it, with its version."""
    engine_problem: str
    schema: int
    """0 if there is none yet."""
    schema_known: int
    """The newest that this program knows."""
    damage: str
    """Empty if none was found."""
    whole: bool
    """False if there was not time for all of it."""


class Contents(Struct, frozen=True):
    """How much a store holds, to compare a copy by."""

    schema: int
    sessions: int
    turns: int
    messages: int
    notes: int
    log_entries: int


class UnitOfWork(Protocol):
    @property
    def sessions(self) -> Sessions: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def slots(self) -> Slots: ...
    @property
    def log(self) -> Log: ...
    @property
    def cursors(self) -> Cursors: ...
    @property
    def inbox(self) -> Inbox: ...
    @property
    def notes(self) -> Notes: ...
    @property
    def lanes(self) -> LaneRows: ...
    @property
    def spend(self) -> Spend: ...
    @property
    def reviews(self) -> Reviews: ...
    @property
    def rests(self) -> Rests: ...
    @property
    def forgetting(self) -> Forgetting: ...
    @property
    def archive(self) -> Archive: ...
    @property
    def access(self) -> AccessRows: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def news(self) -> News: ...
    @property
    def schedules(self) -> Schedules: ...
    def takes_long(self) -> None:
        """To be called before what is more than a few short rows: what was to be done on the spot is done elsewhere."""
        ...


class Store(Protocol):
    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run one unit of work in one transaction; returns once it is durable."""
        ...

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        """`write` for a few short rows that somebody waits for: done on the spot where nobody is held up by it.

        A unit of work that finds more to do than that says so (`takes_long`).
        """
        ...

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run a function that only reads, on one consistent snapshot."""
        ...

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        """The same for what takes microseconds: done on the spot, without the cost of going to another thread."""
        ...

    async def index(self) -> None:
        """Make the words of everything committed searchable: they are indexed some turns at a time."""
        ...

    async def changed(self) -> int:
        """A number that differs whenever somebody has committed, in this process or another."""
        ...

    async def tidy(self) -> bool:
        """Take what was deleted or overwritten out of the files beside the data. False if somebody reads there now."""
        ...

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Copy everything committed so far to a new file, while others go on writing; `progress` hears of what."""
        ...

    async def aclose(self) -> None: ...


class TakesLong(Exception):
    """Not here: somebody would be held up."""


class Tables:
    on_the_spot = False
    """Whether an event loop waits for what is done with them now."""

    def __init__(self, execute: Execute) -> None:
        execute = at_once(execute)
        self.sessions = SessionTables(execute)
        self.turns = TurnTables(execute, self.sessions)
        self.notes = NoteTables(execute)
        self.log = LogTables(execute, self.sessions, self.turns, self.notes)
        self.slots = SlotTables(execute)
        self.inbox = InboxTables(execute)
        self.cursors = CursorTables(execute)
        self.lanes = LaneTables(execute)
        self.spend = SpendTables(execute)
        self.reviews = ReviewTables(execute)
        self.rests = RestTables(execute)
        self.forgetting = ForgettingTables(execute)
        self.archive = ArchiveTables(execute)
        self.access = AccessTables(execute)
        self.tokens = TokenTables(execute)
        self.news = NewsTables(execute)
        self.schedules = ScheduleTables(execute)

    def takes_long(self) -> None:
        if self.on_the_spot:
            raise TakesLong
