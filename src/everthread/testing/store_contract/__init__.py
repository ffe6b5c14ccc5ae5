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

from everthread.testing.store_contract.access import WhoMayWrite
from everthread.testing.store_contract.copies import CopiesOfThePast
from everthread.testing.store_contract.following import Following
from everthread.testing.store_contract.lanes import CursorsAndLanes
from everthread.testing.store_contract.luggage import WhatComesWithMessages
from everthread.testing.store_contract.reviews import WindowsOfReviews
from everthread.testing.store_contract.schedules import TasksAndTheirTimes
from everthread.testing.store_contract.stage import OpenStore
from everthread.testing.store_contract.tokens import KeysOfTheInterface
from everthread.testing.store_contract.turns import RunningTurns
from everthread.testing.store_contract.units import UnitsOfWork
from everthread.testing.store_contract.views import Views
from everthread.testing.store_contract.words import Words

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
