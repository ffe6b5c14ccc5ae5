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


def migrations_before(name: str) -> tuple[Migration, ...]:
    known = known_migrations()
    return known[: [migration.name for migration in known].index(name)]


def test_turns_stored_before_get_the_group_chat_they_were_said_in(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "test.db"))
    before = migrations_before("recall")
    migrate(connection, "test.db", before)
    group = "agent:main:telegram:group:-100"
    thread = "agent:main:telegram:thread:-100:7"
    keys = ("agent:main:telegram:dm:42", group, f"{group}::42", thread, f"{thread}:42", "agent:main:telegram:dm:group")
    for number, key in enumerate(keys, 1):
        connection.execute("INSERT INTO turns VALUES (?, 's', ?, ?, 'me', 'done', 1.0)", (number, number, f"t{number}"))
        connection.execute(
            "INSERT INTO log (session_id, seq, owner, kind, key, epoch, generation, at, number) "
            "VALUES ('s', ?, 'me', 'turn', ?, 1, 0, 1.0, ?)",
            (number, key, number),
        )
    migrate(connection, "test.db")
    chats = [chat for (chat,) in connection.execute("SELECT chat FROM turns ORDER BY number")]
    assert chats == [None, group, group, thread, thread, None]
    connection.close()


def test_a_store_that_had_a_token_before_gets_no_automatic_one(tmp_path: Path) -> None:
    before = migrations_before("api_key_rights")
    for tokens in (0, 2):
        connection = connect(str(tmp_path / f"{tokens}.db"))
        migrate(connection, "test.db", before)
        for number in range(tokens):
            connection.execute("INSERT INTO tokens VALUES (?, 'me', ?, 5.0, NULL)", (f"h{number}", f"n{number}"))
        migrate(connection, "test.db")
        assert list(connection.execute("SELECT at FROM tokens_first")) == ([(5.0,)] if tokens else [])
        rights = connection.execute("SELECT expires_at, read_only, automatic FROM tokens")
        assert list(rights) == [(None, 0, 0)] * tokens
        connection.close()
