"""Contract of stores. Subclass `StoreContract` in a test module and define one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            async def open_store() -> Store:
                return await MyStore.open(tmp_path / "everthread.db")

            return open_store

Each call of `open_store` returns a new handle; all handles of one test share one storage, which is empty at first. The
tests close the handles that they don't crash. Override `crash` if needed: by default a handle crashes by being dropped.

| module | tests |
|---|---|
| `fixtures` | helpers of all tests |
| `transactions` | units of work; singletons and uniqueness |
| `attachments` | attachments of inbound messages |
| `turns` | running turns, session lists |
| `session_views` | views along the lineage, session log |
| `event_log` | following an owner's events, pages of the session list |
| `cursors_and_leases` | cursors, leases, timers and hooks |
| `backfill` | copying earlier sessions to a provider |
| `reviews` | review windows |
| `schedules` | scheduled tasks and their occurrences |
| `search_and_erasure` | search, recall, forgetting, notes |
| `pairings` | guests, pairing codes, wrong codes |
| `api_keys` | API keys |
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
    """Guarantees of a store that the core relies on."""
