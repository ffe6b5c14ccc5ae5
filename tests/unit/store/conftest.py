"""A unit of work on a real file, and a session in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everthread.adapters.sqlite.connection import SqliteDatabase, connect
from everthread.adapters.sqlite.store import prepare
from everthread.domain.model import Cause, ChatType, Session, SessionKey, SessionKind
from everthread.store.unit_of_work import UnitOfWork


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    path = tmp_path / "test.db"
    prepare(path)
    connection = connect(str(path))
    yield SqliteDatabase(connection)
    connection.close()


@pytest.fixture
def uow(database: SqliteDatabase) -> UnitOfWork:
    return UnitOfWork(database)


@pytest.fixture
def key() -> SessionKey:
    return SessionKey("main", "telegram", ChatType.DM, "42")


@pytest.fixture
def session(uow: UnitOfWork, key: SessionKey) -> Session:
    stored = Session("s1", "ann", key, SessionKind.CHAT, Cause.NEW, 1.0)
    uow.sessions.add(stored)
    return stored
