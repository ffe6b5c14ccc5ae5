"""All tables behind one connection: what a unit of work is handed."""

from __future__ import annotations

from everthread.adapters.stores.tables.access import AccessTables
from everthread.adapters.stores.tables.archive import ArchiveTables
from everthread.adapters.stores.tables.cursors import CursorTables
from everthread.adapters.stores.tables.forgetting import ForgettingTables
from everthread.adapters.stores.tables.lanes import LaneTables
from everthread.adapters.stores.tables.log import LogTables
from everthread.adapters.stores.tables.news import NewsTables
from everthread.adapters.stores.tables.notes import NoteTables
from everthread.adapters.stores.tables.rests import RestTables
from everthread.adapters.stores.tables.reviews import ReviewTables
from everthread.adapters.stores.tables.rows import Execute, at_once
from everthread.adapters.stores.tables.running import InboxTables, SlotTables, SpendTables
from everthread.adapters.stores.tables.schedules import ScheduleTables
from everthread.adapters.stores.tables.sessions import SessionTables
from everthread.adapters.stores.tables.tokens import TokenTables
from everthread.adapters.stores.tables.turns import TurnTables


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
