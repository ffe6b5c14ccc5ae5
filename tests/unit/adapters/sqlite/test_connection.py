from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from everthread.adapters.sqlite.connection import SqliteDatabase, connect, translate_error
from everthread.domain.errors import DiskFull, StoreBusy, StoreCorrupt, StoreUnwritable


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    connection = connect(str(tmp_path / "test.db"))
    connection.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)")
    yield SqliteDatabase(connection)
    connection.close()


def test_an_inserted_row_returns_its_id(database: SqliteDatabase) -> None:
    ids = [database.insert("INSERT INTO words (word) VALUES (?)", (word,)) for word in ("one", "two")]
    assert database.execute("SELECT id, word FROM words ORDER BY id") == [(ids[0], "one"), (ids[1], "two")]


def test_a_lone_surrogate_is_replaced(database: SqliteDatabase) -> None:
    database.insert("INSERT INTO words (word) VALUES (?)", ("a\ud800b",))
    assert database.execute("SELECT word FROM words") == [("a?b",)]


def test_a_rollback_discards_the_transaction_and_is_harmless_without_one(database: SqliteDatabase) -> None:
    database.begin(write=True)
    database.insert("INSERT INTO words (word) VALUES (?)", ("one",))
    database.rollback()
    database.rollback()
    assert database.execute("SELECT COUNT(*) FROM words") == [(0,)]


def test_errors_of_sqlite_become_errors_of_the_store(database: SqliteDatabase) -> None:
    expected = {
        apsw.BusyError: StoreBusy,
        apsw.FullError: DiskFull,
        apsw.NotADBError: StoreCorrupt,
        apsw.ReadOnlyError: StoreUnwritable,
    }
    for error, kind in expected.items():
        assert type(translate_error(error("x"), "test.db")) is kind
    assert database.is_retryable(StoreBusy("x"))
    assert not database.is_retryable(DiskFull("x"))
