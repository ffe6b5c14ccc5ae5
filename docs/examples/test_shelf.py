"""The contract kit on the provider of `shelf.py`."""

import sqlite3
import threading
from contextlib import closing

import pytest
from shelf import Shelf

from everthread.testing.contracts.memory_provider import ProviderContract
from everthread.testing.recording_provider import StoredEntry


class Unacknowledged(sqlite3.Connection):
    """Commits, then fails before it acknowledges."""

    def close(self):
        super().close()
        raise sqlite3.OperationalError("the connection broke")


class BrokenDatabase:
    """Replaces `Shelf.connect` and fails on demand."""

    def __init__(self, shelf):
        self.path = shelf.path
        self.faults = []
        self.answering = threading.Event()
        self.answering.set()
        shelf.connect = self.connect

    def connect(self):
        assert self.answering.wait(10)
        fault = self.faults.pop() if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        return sqlite3.connect(self.path, factory=fault or sqlite3.Connection)

    def fail_next(self, calls=1):
        self.faults = [sqlite3.OperationalError("unable to open database file")] * calls

    def reject_next(self, calls=1):
        self.faults = [sqlite3.IntegrityError("not in this table")] * calls

    def lose_next(self, calls=1):
        self.faults = [Unacknowledged] * calls

    def hang(self):
        self.answering.clear()

    def heal(self):
        self.faults = []
        self.answering.set()


class TestShelf(ProviderContract):
    @pytest.fixture
    def provider(self, tmp_path):
        return Shelf(tmp_path / "shelf.db")

    @pytest.fixture
    def faults(self, provider):
        return BrokenDatabase(provider)

    @pytest.fixture
    def effects(self):
        def stored_effects(provider):
            with closing(sqlite3.connect(provider.path)) as database:
                rows = database.execute("SELECT session, kind, text FROM items ORDER BY rowid").fetchall()
            return [StoredEntry(*row) for row in rows]

        return stored_effects
