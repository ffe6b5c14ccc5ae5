"""Requests to forget: tombstones, and the erasure of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everthread.domain.forgotten_words import WordMark, erase_marked
from everthread.store.database import Database, Table
from everthread.store.forgotten_facts import erase_known, marks_of, strip_text
from everthread.store.search_index import SearchIndex

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

    def add_tombstone(self, kind: str, identity: str, owner: str, now: float, mark: WordMark | None = None) -> None:
        """Add a tombstone against replay and import, with the mark of a fact's words."""
        self._execute(
            "INSERT INTO tombstones (kind, identity, owner, at, chars, checksum) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (kind, identity) DO UPDATE SET times = tombstones.times + 1, "
            "chars = excluded.chars, checksum = excluded.checksum",
            (kind, identity, owner, now, *((mark.chars, mark.checksum) if mark else (None, None))),
        )

    def tombstones(self, owner: str) -> int:
        """Return the owner's number of forget requests. Text that was read before the last one must not be used."""
        return self._value("SELECT COALESCE(SUM(times), 0) FROM tombstones WHERE owner = ?", (owner,))

    def has_tombstone(self, kind: str, identity: str) -> bool:
        """Return whether there is a tombstone."""
        return self._exists("SELECT 1 FROM tombstones WHERE kind = ? AND identity = ?", (kind, identity))

    def strip_delivered(self, session_id: str, seq: int) -> None:
        """Erase a fact from its log entry once every provider has received the request to forget it."""
        row = self._first(
            "SELECT 1 FROM log WHERE session_id = ? AND seq = ? AND NOT EXISTS ("
            "SELECT 1 FROM providers p LEFT JOIN cursors c "
            "ON c.provider = p.name AND c.session_id = log.session_id WHERE COALESCE(c.seq, 0) < log.seq) "
            "AND NOT EXISTS (SELECT 1 FROM redeliveries r WHERE r.session_id = log.session_id AND r.seq = log.seq)",
            (session_id, seq),
        )
        if row is not None:
            strip_text(self._execute, session_id, seq)

    def current_text(self, text: str, owner: str, tombstones: int) -> str:
        """Return the text as it may be stored, if it was read from the owner's data at that number of tombstones."""
        if self.tombstones(owner) == tombstones:
            return text
        return erase_marked(text, owner, marks_of(self._execute, owner))

    def without_facts(self, text: str, session_id: str | None) -> str:
        """Erase the forgotten facts of the session's owner from an error message that may quote them."""
        return erase_known(self._execute, text, session_id)

    def without_unnoted_facts(self, text: str, owner: str, noted: Sequence[str]) -> str:
        """Erase the owner's forgotten facts, except those that one of the notes contains again."""
        marks = [m for m in marks_of(self._execute, owner) if erase_marked(text, owner, (m,)) != text]
        again = {m for m in marks for note in noted if erase_marked(note, owner, (m,)) != note}
        return erase_marked(text, owner, (m for m in marks if m not in again))
