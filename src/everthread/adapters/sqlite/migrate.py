"""Numbered migrations with checksums, applied when a file is opened."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.errors import StoreCorrupt, StoreTooNew

APPLICATION_ID = 0x45565448
_FOLDER = Path(__file__).parent / "migrations"


class Migration(Struct, frozen=True):
    """One SQL script."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def known_migrations(folder: Path = _FOLDER) -> tuple[Migration, ...]:
    """Return this program's migrations in order. Files are named `0001_name.sql`."""
    found = (path.name.removesuffix(".sql").split("_", 1) + [path.read_text()] for path in sorted(folder.glob("*.sql")))
    return tuple(Migration(int(number), name, sql) for number, name, sql in found)


def migrate(connection: Connection, path: str, migrations: tuple[Migration, ...] | None = None) -> int:
    """Apply missing migrations in one transaction and return their number.

    Two programs may open a new file at the same time, so the missing ones are determined under the write lock.
    """
    migrations = known_migrations() if migrations is None else migrations
    # No lock in the usual case: a program that only reads need not wait for a long write.
    if _is_ours(connection) and not _pending_migrations(connection, path, migrations):
        return 0
    connection.execute("BEGIN IMMEDIATE")
    try:
        missing = _pending_migrations(connection, path, migrations)
        for migration in missing:
            connection.execute(migration.sql)
            connection.execute(
                "INSERT INTO migrations (number, name, checksum) VALUES (?, ?, ?)",
                (migration.number, migration.name, migration.checksum),
            )
    except BaseException:
        # Some errors, a full disk among them, have ended the transaction already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return len(missing)


def check_application(connection: Connection, path: str) -> None:
    """Raise `StoreCorrupt` unless the file is empty or Everthread's. Changes nothing in it."""
    if not _is_ours(connection) and list(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1")):
        raise StoreCorrupt(f"{path}: The file is another program's database. Choose another home.")


def _is_ours(connection: Connection) -> bool:
    return connection.pragma("application_id") == APPLICATION_ID


def _pending_migrations(connection: Connection, path: str, migrations: tuple[Migration, ...]) -> tuple[Migration, ...]:
    if not _is_ours(connection):
        check_application(connection, path)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT, checksum TEXT)")
    rows = connection.execute("SELECT number, checksum FROM migrations")
    applied: dict[int, str] = {number: checksum for number, checksum in rows}
    newest = migrations[-1].number
    if applied and max(applied) > newest:
        raise StoreTooNew(
            f"{path}: Written by a newer Everthread (schema {max(applied)}; this version knows {newest}). "
            "Upgrade Everthread."
        )
    for migration in migrations:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise StoreCorrupt(f"{path}: Schema {migration.number} differs from this program's. Restore a backup.")
    return tuple(migration for migration in migrations if migration.number not in applied)
