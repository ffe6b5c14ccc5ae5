"""A memory provider with its own SQLite file. One instance serves every session."""

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path

from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.events import ForgetScope
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard

TEXT_CHARS_MAX = 100_000
SCHEMA = """
CREATE TABLE IF NOT EXISTS seen (key TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS items (
    session TEXT, seq INTEGER, owner TEXT, kind TEXT, turn INTEGER, note TEXT, text TEXT, PRIMARY KEY (session, seq)
);
"""
PUT = "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?)"


class Shelf(MemoryProvider):
    name = "shelf"
    capabilities = Capability.RECALL | Capability.FORGET | Capability.DEDUPLICATES
    scorecard = Scorecard(redelivery="done", order="done", forget="done")

    def __init__(self, path: Path) -> None:
        self.path = path

    def initialize(self, **settings):
        with closing(self.connect()) as database:
            database.executescript(SCHEMA)

    def sync_turn(self, user, assistant, *, ref, delivery, turn, **more):
        row = (ref.session_id, delivery.seq, ref.owner, "turn", turn, None, f"{user}\n{assistant}")
        self._once(delivery, (PUT, row))

    def on_memory_write(self, action, target, content, metadata, *, ref, delivery):
        note = metadata["note_id"]
        statements = [("DELETE FROM items WHERE note = ? AND owner = ?", (note, ref.owner))]
        if action != "remove":
            statements.append((PUT, (ref.session_id, delivery.seq, ref.owner, "note", None, note, content)))
        self._once(delivery, *statements)

    def on_session_switch(self, new_session_id, *, parent_session_id="", reset=False, ref, delivery, **more):
        # The hook also announces opened sessions, which need no row.
        hidden = [(new_session_id, turn) for turn in more.get("turns", ())]
        self._once(delivery, *(("DELETE FROM items WHERE session = ? AND turn = ?", row) for row in hidden))

    def prefetch(self, query, *, ref, limit):
        query_words = set(query.casefold().split())
        rows = self._read("SELECT text, session, turn FROM items WHERE owner = ? ORDER BY rowid DESC", ref.owner)
        scored = [
            (len(query_words & set(text.casefold().split())), text, session, turn) for text, session, turn in rows
        ]
        best = sorted((row for row in scored if row[0]), key=lambda row: -row[0])[:limit]
        return [RecallItem(text, float(score), session_id=session, turn=turn) for score, text, session, turn in best]

    def forget(self, scope, *, ref, delivery, text="", note_id=""):
        match scope:
            case ForgetScope.SESSION:
                statement = ("DELETE FROM items WHERE session = ?", (ref.session_id,))
            case ForgetScope.OWNER:
                statement = ("DELETE FROM items WHERE owner = ?", (ref.owner,))
            case ForgetScope.FACT:
                sql = "DELETE FROM items WHERE owner = ? AND (note = ? OR (? <> '' AND instr(text, ?) > 0))"
                statement = (sql, (ref.owner, note_id, text, text))
        self._once(delivery, statement)

    def connect(self):
        return sqlite3.connect(self.path)

    def _once(self, delivery, *statements):
        """Write once per delivery key; a repeated entry changes nothing."""
        if any(isinstance(value, str) and len(value) > TEXT_CHARS_MAX for _, row in statements for value in row):
            raise Rejected(self.name, f"an entry has more than {TEXT_CHARS_MAX} characters")
        with self._translate_errors(), closing(self.connect()) as database, database:
            if database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (delivery.key,)).rowcount:
                for sql, values in statements:
                    database.execute(sql, values)

    def _read(self, sql, *values):
        with self._translate_errors(), closing(self.connect()) as database:
            return database.execute(sql, values).fetchall()

    @contextmanager
    def _translate_errors(self):
        """Translate SQLite's errors: `Unavailable` is retried, `Rejected` is not."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Unavailable(self.name, str(error), retry_after_s=5) from error
        except (sqlite3.DataError, sqlite3.IntegrityError) as error:
            raise Rejected(self.name, str(error)) from error
