"""Damage a database file as a failing disk does."""

from __future__ import annotations

from pathlib import Path

from everthread.adapters.sqlite.connection import connect_bare


def damage_table(path: Path, table: str) -> None:
    """Overwrite the first page of a table in the file."""
    connection = connect_bare(str(path))
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
    size = connection.pragma("page_size")
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xaa" * size)


def damage_index(path: Path) -> None:
    """Overwrite the words of the search index."""
    connection = connect_bare(str(path))
    connection.execute("UPDATE message_words_data SET block = x'ffffffffff' WHERE id > 10")
    connection.close()


SILENT_DAMAGE = {
    "structure overwritten with zeros": "UPDATE message_words_data SET block = zeroblob(length(block)) WHERE id = 10",
    "structure emptied": "UPDATE message_words_data SET block = x'' WHERE id = 10",
}
"""Damage of the search index that SQLite does not report: searches find nothing."""


def lose_index(path: Path, damage: str) -> None:
    """Damage the search index with a statement of `SILENT_DAMAGE`."""
    connection = connect_bare(str(path))
    connection.execute(damage)
    connection.close()
