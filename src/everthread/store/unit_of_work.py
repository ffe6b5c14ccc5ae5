"""The store: one unit of work is one transaction.

A unit of work is a plain function that takes a `UnitOfWork`. It runs again if its transaction has to be repeated, so it
must have no other effects. The caller gets its result once the commit is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from everthread.store.activity import Activity
from everthread.store.api_keys import ApiKeys
from everthread.store.archive import Archive
from everthread.store.attachments import Attachments
from everthread.store.compression_pauses import CompressionPauses
from everthread.store.cursors import Cursors
from everthread.store.database import Database
from everthread.store.derived_text import DerivedText
from everthread.store.erasure import Erasure
from everthread.store.error_details import ErrorDetails
from everthread.store.event_log import EventLog
from everthread.store.failed_updates import FailedUpdates
from everthread.store.inbox import Inbox
from everthread.store.incidents import Incidents
from everthread.store.leases import Leases
from everthread.store.notes import Notes
from everthread.store.outbox import Outbox
from everthread.store.pairings import Access
from everthread.store.quota_counters import QuotaCounters
from everthread.store.recalled import Recalled
from everthread.store.reviews import Reviews
from everthread.store.schedules import Schedules
from everthread.store.search_index import SearchIndex
from everthread.store.sessions import Sessions
from everthread.store.slots import Slots
from everthread.store.spend import Spend
from everthread.store.tool_pins import ToolPins
from everthread.store.turns import Turns

T = TypeVar("T")


class NotInline(Exception):
    """The unit of work must not run on the event loop's thread."""


class UnitOfWork:
    """All tables on one connection."""

    is_inline = False
    """An event loop waits while this unit of work runs."""

    def __init__(self, database: Database) -> None:
        self.sessions = Sessions(database)
        self.turns = Turns(database, self.sessions)
        self.search = SearchIndex(database, self.turns)
        self.notes = Notes(database)
        self.log = EventLog(database, self.sessions, self.turns, self.notes)
        self.activity = Activity(database)
        self.slots = Slots(database)
        self.inbox = Inbox(database)
        self.failed_updates = FailedUpdates(database)
        self.outbox = Outbox(database)
        self.attachments = Attachments(database)
        self.cursors = Cursors(database)
        self.leases = Leases(database)
        self.incidents = Incidents(database)
        self.error_details = ErrorDetails(database)
        self.spend = Spend(database)
        self.recalled = Recalled(database)
        self.quota_counters = QuotaCounters(database)
        self.reviews = Reviews(database)
        self.compression_pauses = CompressionPauses(database)
        self.erasure = Erasure(database, self.search)
        self.derived = DerivedText(database, self.erasure, self.sessions)
        self.archive = Archive(database, self.search)
        self.access = Access(database)
        self.api_keys = ApiKeys(database)
        self.schedules = Schedules(database)
        self.tool_pins = ToolPins(database)

    def leave_event_loop(self) -> None:
        """Leave the event loop's thread before more than a few short rows are written.

        A unit of work of `write_inline` is rolled back and repeated by the writer's thread.
        """
        if self.is_inline:
            raise NotInline


class Store(Protocol):
    """Asynchronous access to the store."""

    @property
    def damage(self) -> str:
        """The damage for which nothing is written any more; empty if none was found."""
        ...

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run one unit of work in one transaction; returns once it is durable."""
        ...

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run a few short rows of `write` on the event loop's thread if no other write is waiting.

        A unit of work that has more to do calls `leave_event_loop`.
        """
        ...

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run a function that only reads, on one consistent snapshot."""
        ...

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run a read of microseconds on the event loop's thread."""
        ...

    async def index(self) -> None:
        """Index all committed messages. New turns are indexed many at a time, so a search calls this first."""
        ...

    async def changed(self) -> int:
        """Return a number that changes with every commit of this or another process."""
        ...

    async def tidy(self) -> bool:
        """Remove deleted and overwritten rows from the files beside the data. Return False if another process reads
        them.
        """
        ...

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Copy everything committed so far to a new file. `progress` receives the pages copied and the total."""
        ...

    async def aclose(self) -> None:
        """Finish queued writes and close the store."""
        ...


class StoreCheck(Struct, frozen=True):
    """The result of a check of a store's file."""

    engine: str
    """The database engine with its version."""
    engine_problem: str
    schema: int
    """The schema number; 0 for a new file."""
    schema_known: int
    """The newest schema of this program."""
    damage: str
    """The first problem found; empty if there is none."""
    whole: bool
    """False if the time was too short to check everything."""
    index_damage: str = ""
    """The first problem of the search index, which can be rebuilt; empty if there is none."""


class RowCounts(Struct, frozen=True):
    """The number of rows in a store, to compare a copy with."""

    schema: int
    sessions: int
    turns: int
    messages: int
    notes: int
    log_entries: int
