"""Compare the registry with the schema. The files are compared in tests/unit/lifecycle/test_forget_everywhere.py."""

import ast
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from everthread.adapters.sqlite.store import prepare
from everthread.store.text_registry import FILES, TABLES, DiscardFiles, ErasedWith, Indexed, OwnerCondition, TextTable

STORE = Path(__file__).parents[3] / "src" / "everthread" / "store"
Column = tuple[str, str, int]
"""Name, type and position in the primary key."""


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Column]]:
    """The columns of every table of a new store, without the tables that SQLite keeps for itself and for an index."""
    path = tmp_path_factory.mktemp("home") / "everthread.db"
    prepare(path)
    with closing(cast(Any, apsw).Connection(str(path))) as connection:
        tables = [
            row[1]
            for row in connection.execute("PRAGMA table_list")
            if row[2] in ("table", "virtual") and not row[1].startswith("sqlite_")
        ]
        return {
            table: [(row[1], row[2], row[5]) for row in connection.execute(f"PRAGMA table_info({table})")]
            for table in tables
        }


def test_every_text_column_is_declared_with_or_without_words(schema: dict[str, list[Column]]) -> None:
    declared = {table.name: {*table.erased, *table.exempt} for table in TABLES}
    # The columns of a virtual table have no type.
    texts = {name: {c for c, kind, _ in columns if kind in ("TEXT", "BLOB", "")} for name, columns in schema.items()}
    assert len(declared) == len(TABLES), "a table is declared twice"
    assert declared == texts, "declare the column in store/text_registry.py"


def test_no_column_is_declared_both_ways_or_without_a_reason() -> None:
    for table in TABLES:
        assert not set(table.erased) & set(table.exempt), table.name
        assert all(reason.strip() for reason in table.exempt.values()), table.name
    assert all(entry.about.strip() for entry in FILES)


def test_rows_with_words_are_found_by_their_owner_and_changed_by_their_key(schema: dict[str, list[Column]]) -> None:
    for table in TABLES:
        columns = schema[table.name]
        if any(not isinstance(method, Indexed) for method in table.erased.values()):
            assert set(table.key) == {name for name, _, position in columns if position}, table.name
        names = {name for name, _, _ in columns}
        needed = {OwnerCondition.BY_COLUMN: "owner", OwnerCondition.BY_SESSION: "session_id"}.get(table.owner_condition)
        assert not table.erased or isinstance(next(iter(table.erased.values())), Indexed) or needed in {*names, None}
        for method in table.erased.values():
            assert not isinstance(method, ErasedWith) or method.column in table.erased, table.name


ALL_TEXT = (Indexed, DiscardFiles, ErasedWith)
"""Methods that erase a column together with the session, whatever statements its table has."""


def erased_by(statements: Sequence[str], table: str) -> set[str] | None:
    """Return the columns that the statements set; None if they delete the rows."""
    if any(re.match(rf"DELETE FROM {table}\b", sql) for sql in statements):
        return None
    updates = [sql for sql in statements if re.match(rf"UPDATE {table}\b", sql)]
    return {column for sql in updates for column in re.findall(r"(\w+) = ", sql.split(" WHERE ")[0])}


@pytest.mark.parametrize("table", [table for table in TABLES if table.erased], ids=lambda table: table.name)
def test_forgetting_a_session_or_an_owner_erases_every_column_or_says_why_not(table: TextTable) -> None:
    wanted = {column for column, method in table.erased.items() if not isinstance(method, ALL_TEXT)}
    for statements, kept in (
        ((*table.on_session, *table.on_turn), table.kept_with_session),
        (table.on_owner, table.kept_with_owner),
    ):
        erased = erased_by(statements, table.name)
        missing = set() if erased is None else wanted - erased
        assert missing == set(kept), f"erase the column of {table.name}, or say why it is kept"
        assert all(reason.strip() for reason in kept.values())


def test_the_scrubber_has_no_statements_of_its_own() -> None:
    """It runs those of the registry, and makes others of its names. The marks of running turns are no text."""
    found = [sql for sql in _statements(STORE / "scrubber.py") if re.match(r"(UPDATE|DELETE FROM|INSERT INTO) \w", sql)]
    assert found == ["UPDATE slots SET forgotten = ? WHERE turn_id = ?"], "declare it in store/text_registry.py"


def test_derived_text_has_one_door() -> None:
    """Only `derived_text` inserts prefixes, summaries and notes, after it has compared the forget count."""
    for path in sorted(STORE.glob("*.py")):
        inserts = [sql for sql in _statements(path) if sql.startswith("INSERT INTO")]
        tables = ("prefixes", "summaries", "note_versions")
        found = {name for sql in inserts for name in tables if f"INSERT INTO {name}" in sql}
        assert (found == set(tables)) is (path.name == "derived_text.py"), f"{path.name} inserts {found}"
        assert not found or path.name == "derived_text.py", f"{path.name} inserts {found}"


def _statements(path: Path) -> list[str]:
    """Return the string constants of a module; those of an f-string one by one."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
