"""Test the embedded store against the store contract."""

from pathlib import Path

import pytest

from everthread.adapters.sqlite.store import SqliteStore
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.store import OpenStore, StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_store() -> Store:
            return await SqliteStore.open(tmp_path / "home" / "everthread.db")

        return open_store
