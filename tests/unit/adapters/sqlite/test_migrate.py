from pathlib import Path

import pytest

from everthread.adapters.sqlite.connection import connect
from everthread.adapters.sqlite.migrate import Migration, known_migrations, migrate
from everthread.domain.errors import StoreCorrupt, StoreTooNew

ONE = Migration(1, "one", "CREATE TABLE one (x)")
TWO = Migration(2, "two", "CREATE TABLE two (x)")


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in known_migrations()] == list(range(1, len(known_migrations()) + 1))


def test_missing_migrations_are_applied_once(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "test.db"))
    assert migrate(connection, "test.db", (ONE,)) == 1
    assert migrate(connection, "test.db", (ONE, TWO)) == 1
    assert migrate(connection, "test.db", (ONE, TWO)) == 0
    connection.close()


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "test.db"))
    with pytest.raises(Exception, match="syntax error"):
        migrate(connection, "test.db", (ONE, Migration(2, "two", "CREATE NONSENSE")))
    assert list(connection.execute("SELECT name FROM sqlite_schema")) == []
    connection.close()


def test_another_schema_is_refused(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "test.db"))
    migrate(connection, "test.db", (ONE, TWO))
    with pytest.raises(StoreTooNew, match="schema 2; this version knows 1"):
        migrate(connection, "test.db", (ONE,))
    with pytest.raises(StoreCorrupt, match="Schema 2 differs"):
        migrate(connection, "test.db", (ONE, Migration(2, "two", "CREATE TABLE other (x)")))
    connection.close()
