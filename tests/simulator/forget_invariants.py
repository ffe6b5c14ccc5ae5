"""Invariant of forgotten facts: no stored text contains their words again, unless somebody said them again."""

from __future__ import annotations

from collections import Counter, defaultdict

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.model import NoteVersion
from everthread.lifecycle import ForgetFact
from tests.simulator import operations as asked
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import require

_DERIVED = {
    "prefixes": "SELECT session_id FROM prefixes WHERE owner = ? AND instr(content, CAST(? AS BLOB))",
    "summaries": "SELECT session_id FROM summaries WHERE owner = ? AND instr(content, ?)",
    "titles": "SELECT id FROM sessions WHERE owner = ? AND instr(COALESCE(title, ''), ?)",
}
"""Text that is derived from other text, and may be stored long after its source was read."""


class ForgottenFacts:
    """Words of forgotten facts, by owner."""

    def __init__(self, reference: ReferenceModel, database: Connection, counts: Counter[str]) -> None:
        self._reference = reference
        self._database = database
        self._counts = counts
        self.words: defaultdict[str, set[str]] = defaultdict(set)

    def observe_result(self, operation: object | None, result: object) -> None:
        """Call it before the reference model is told of the commit."""
        match operation, result:
            case asked.ForgetOperation(ForgetFact(note_id), owner), int() if not isinstance(result, bool):
                self.words[owner] |= self._reference.words.known_texts(note_id)
                self._check_derived(owner)
            case asked.Accept(_, text, owner), (_, True):
                self._said_again(owner, text)
            case asked.Note(_, owner, change), NoteVersion():
                self._said_again(owner, change.content)
            case asked.Rewrite(_, owner), tuple():
                for change in operation.rewriting.changes:
                    self._said_again(owner, change.content)
            case asked.PutPrefix(owner), _:
                self._counts["prefixes stored"] += 1
                self._check_derived(owner)
            case asked.Cross(), _:
                for owner in self.words:
                    self._check_derived(owner)
            case _:
                pass

    def _said_again(self, owner: str, text: str) -> None:
        self.words[owner] -= {word for word in self.words[owner] if word in text}

    def _check_derived(self, owner: str) -> None:
        for word in self.words[owner]:
            for table, sql in _DERIVED.items():
                rows = list(self._database.execute(sql, (owner, word)))
                require(not rows, f"{table} of {rows} contain {word!r}, which {owner} has forgotten")
            self._counts["forgotten words looked for"] += 1

    def check_store(self) -> None:
        """Check every column of every table. Call it when everything was delivered."""
        for table, columns in self._columns().items():
            for owner, words in self.words.items():
                for word in sorted(words):
                    condition = " OR ".join(f"instr(CAST({column} AS TEXT), ?)" for column in columns)
                    where = f"SELECT COUNT(*) FROM {table} WHERE {condition}"
                    found = next(iter(self._database.execute(where, (word,) * len(columns))))[0]
                    require(not found, f"{table} contains {word!r}, which {owner} has forgotten")

    def _columns(self) -> dict[str, list[str]]:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        names = [name for (name,) in list(self._database.execute(tables)) if not name.startswith("message_words")]
        return {name: [f'"{row[1]}"' for row in self._database.execute(f"PRAGMA table_info({name})")] for name in names}
