"""Tombstones of forget requests, and erasure of forgotten facts from text that is stored later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everthread.domain.forgotten_words import WordMark, erase_marked
from everthread.store.database import Database, Table
from everthread.store.forgotten_facts import erase_forgotten_facts, marks_of, remove_request_text
from everthread.store.search_index import SearchIndex
from everthread.store.sql import from_json, to_json

if TYPE_CHECKING:
    from everthread.store.scrubber import Scrubber


class Erasure(Table):
    """Tombstones of forgotten sessions, notes, facts and owners. `scrubber` erases their text."""

    def __init__(self, database: Database, search: SearchIndex) -> None:
        super().__init__(database)
        self._search = search

    @property
    def scrubber(self) -> Scrubber:
        from everthread.store.scrubber import Scrubber  # noqa: PLC0415 - forgetting is rare, starting is not

        return Scrubber(self._database, self._search)

    def add_tombstone(self, kind: str, identity: str, owner: str, now: float, marks: Sequence[WordMark] = ()) -> None:
        """Add a tombstone, which keeps replay and import from restoring the data, with the marks of a fact's words.

        Marks are added to those of an existing tombstone: texts that differ only in case and spaces have one identity.
        """
        sql = "SELECT marks FROM tombstones WHERE kind = ? AND identity = ?"
        known = [WordMark(*m) for (text,) in self._execute(sql, (kind, identity)) if text for m in from_json(text)]
        marks = tuple(dict.fromkeys((*known, *marks)))
        self._execute(
            "INSERT INTO tombstones (kind, identity, owner, at, marks) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (kind, identity) DO UPDATE SET times = tombstones.times + 1, marks = excluded.marks",
            (kind, identity, owner, now, to_json(marks) if marks else ""),
        )

    def forget_count(self, owner: str) -> int:
        """Return the owner's number of forget requests. Text that was read before the last one must not be used."""
        return self._value("SELECT COALESCE(SUM(times), 0) FROM tombstones WHERE owner = ?", (owner,))

    def has_tombstone(self, kind: str, identity: str) -> bool:
        """Return whether there is a tombstone."""
        return self._exists("SELECT 1 FROM tombstones WHERE kind = ? AND identity = ?", (kind, identity))

    def remove_delivered_request_text(self, session_id: str, seq: int) -> None:
        """Erase a fact from its log entry once every provider has received the request to forget it."""
        row = self._first(
            "SELECT 1 FROM log WHERE session_id = ? AND seq = ? AND NOT EXISTS ("
            "SELECT 1 FROM providers p LEFT JOIN cursors c "
            "ON c.provider = p.name AND c.session_id = log.session_id WHERE COALESCE(c.seq, 0) < log.seq) "
            "AND NOT EXISTS (SELECT 1 FROM redeliveries r WHERE r.session_id = log.session_id AND r.seq = log.seq)",
            (session_id, seq),
        )
        if row is not None:
            remove_request_text(self._execute, session_id, seq)

    def erase_facts_forgotten_since(self, text: str, owner: str, forget_count: int) -> str:
        """Return the text, without forgotten facts if the owner has had one forgotten since `forget_count` was read."""
        if self.forget_count(owner) == forget_count:
            return text
        return erase_marked(text, owner, marks_of(self._execute, owner))

    def erase_facts_from_error(self, text: str, session_id: str | None) -> str:
        """Erase forgotten facts of the session's owner, or of all owners if it is None, from an error message."""
        return erase_forgotten_facts(self._execute, text, session_id)

    def erase_facts_not_noted_again(self, text: str, owner: str, noted: Sequence[str]) -> str:
        """Erase the owner's forgotten facts, as whole words, except those that a note in `noted` contains again."""

        def erase(text: str, *marks: WordMark) -> str:
            return erase_marked(text, owner, marks, whole_words=True)

        marks = [m for m in marks_of(self._execute, owner) if erase(text, m) != text]
        again = {m for m in marks for note in noted if erase(note, m) != note}
        return erase(text, *(m for m in marks if m not in again))
