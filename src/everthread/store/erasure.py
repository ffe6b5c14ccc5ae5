"""Tombstones of forget requests, and erasure of forgotten facts from text that is stored later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from everthread.domain.forgotten_words import ForgottenWords, Mark, Span, WordMark, replace_spans
from everthread.store.database import Database, Table
from everthread.store.deferred_erasure import ErasureDue, FoundWords
from everthread.store.forgotten_facts import erase_forgotten_facts, marks_of, remove_request_text, words_of
from everthread.store.search_index import SearchIndex
from everthread.store.sql import from_json, to_json

if TYPE_CHECKING:
    from everthread.store.scrubber import Scrubber

FoundIn = Mapping[str, Mapping[Span, Mark]]
COST_MAX = 500_000
"""Larger texts are searched outside the transaction; see `ForgottenWords.cost`."""


class Erasure(Table):
    """Tombstones of forgotten sessions, notes, facts and owners. `scrubber` erases their text."""

    def __init__(self, database: Database, search: SearchIndex) -> None:
        super().__init__(database)
        self._search = search
        self.may_defer = False
        """The store catches `ErasureDue`."""
        self.found: FoundWords = {}
        """Results of a search outside the transaction."""

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
            "ON CONFLICT (kind, identity) DO UPDATE SET times = tombstones.times + 1, at = excluded.at, "
            "marks = excluded.marks",
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

    def erase_marked(self, texts: Sequence[str], owner: str, marks: str) -> list[str]:
        """Erase the words of marks, as stored in a slot, from the texts of a running turn."""
        found = self._find(texts, f"{owner} {marks}", lambda: ForgottenWords.of(owner, _decode(marks)))
        return [replace_spans(text, sorted(found[text])) for text in texts]

    def erase_facts_forgotten_since(self, text: str, owner: str, forget_count: int) -> str:
        """Return the text, without forgotten facts if the owner has had one forgotten since `forget_count` was read."""
        if self.forget_count(owner) == forget_count:
            return text
        return self.erase_facts(text, owner)

    def erase_facts(self, text: str, owner: str) -> str:
        """Erase all facts that the owner has had forgotten."""
        return replace_spans(text, sorted(self._find_facts((text,), owner)[text]))

    def erase_facts_from_error(self, text: str, session_id: str | None) -> str:
        """Erase forgotten facts of the session's owner, or of all owners if it is None, from an error message."""
        return erase_forgotten_facts(self._execute, text, session_id)

    def erase_facts_not_noted_again(self, text: str, owner: str, noted: Sequence[str]) -> str:
        """Erase the owner's forgotten facts, except those that a note in `noted` contains again."""
        if not self._find_facts((text,), owner)[text]:
            return text
        # Overlapping facts too: each is noted again or not, and the longest hides the others only if it is erased.
        marks = list(marks_of(self._execute, owner))
        found = _identities(ForgottenWords(marks), text)
        marks = [mark for mark in marks if mark[1].identity in found]
        again = _identities(ForgottenWords(marks), *noted)
        return ForgottenWords(mark for mark in marks if mark[1].identity not in again).erase(text)

    def _find_facts(self, texts: Sequence[str], owner: str) -> FoundIn:
        return self._find(texts, f"{owner} {self.forget_count(owner)}", lambda: words_of(self._execute, owner))

    def _find(self, texts: Sequence[str], marks_id: str, words: Callable[[], ForgottenWords]) -> FoundIn:
        """Find forgotten words in the texts. `marks_id` identifies the marks that `words` returns.

        Raises `ErasureDue` for large texts, if the store supports it.
        """
        found: dict[str, Mapping[Span, Mark]] = {}
        for text in texts:
            if (known := self.found.get((marks_id, text))) is not None:
                found[text] = known
        if missing := [text for text in dict.fromkeys(texts) if text not in found]:
            wanted = words()
            if self.may_defer and sum(map(wanted.cost, missing)) > COST_MAX:
                raise ErasureDue(marks_id, wanted, missing)
            found |= {text: wanted.find(text) for text in missing}
        return found


def _identities(words: ForgottenWords, *texts: str) -> set[str]:
    return {mark.identity for text in texts for _, mark in words.find(text, overlapping=True).values()}


def _decode(marks: str) -> list[WordMark]:
    return msgspec.json.decode(marks, type=list[WordMark])
