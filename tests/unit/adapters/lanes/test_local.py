"""The lanes of the embedded default keep the contract of all lanes."""

from pathlib import Path

import pytest

from everthread.adapters.lanes.local import LocalLanes
from everthread.adapters.sqlite.store import SqliteStore
from everthread.ports.clock import Clock
from everthread.ports.lanes import Lanes
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.lanes import LanesContract, MakeLanes
from everthread.testing.contracts.store import OpenStore


class TestLocalLanes(LanesContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store() -> Store:
            return await SqliteStore.open(tmp_path / "home" / "everthread.db")

        return open_store

    @pytest.fixture
    def make_lanes(self) -> MakeLanes:
        def make_lanes(store: Store, clock: Clock, holder: str, *, lease_s: float) -> Lanes:
            return LocalLanes(store, clock, holder, lease_s=lease_s)

        return make_lanes
