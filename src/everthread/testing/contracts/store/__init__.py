"""What every store must do. Subclass `StoreContract` in a test module and give it one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            async def open_store() -> Store:
                return await MyStore.open(tmp_path / "everthread.db")

            return open_store

Each call of `open_store` gives a fresh handle; all handles of one test are on the same, at first empty, storage. The
tests close the handles that they don't crash. `crash` may be overridden too: by default a handle crashes by being
dropped.
"""

from everthread.testing.contracts.store.api_keys import KeysOfTheInterface
from everthread.testing.contracts.store.attachments import WhatComesWithMessages
from everthread.testing.contracts.store.backfill import CopiesOfThePast
from everthread.testing.contracts.store.cursors_and_leases import CursorsAndLanes
from everthread.testing.contracts.store.event_log import Following
from everthread.testing.contracts.store.fixtures import OpenStore
from everthread.testing.contracts.store.pairings import WhoMayWrite
from everthread.testing.contracts.store.reviews import WindowsOfReviews
from everthread.testing.contracts.store.schedules import TasksAndTheirTimes
from everthread.testing.contracts.store.search_and_erasure import Words
from everthread.testing.contracts.store.session_views import Views
from everthread.testing.contracts.store.transactions import UnitsOfWork
from everthread.testing.contracts.store.turns import RunningTurns

__all__ = ["OpenStore", "StoreContract"]


class StoreContract(
    UnitsOfWork,
    RunningTurns,
    Views,
    Words,
    CursorsAndLanes,
    CopiesOfThePast,
    WindowsOfReviews,
    WhoMayWrite,
    KeysOfTheInterface,
    TasksAndTheirTimes,
    WhatComesWithMessages,
    Following,
):
    """Every test here is a promise that the rest of the program relies on."""
