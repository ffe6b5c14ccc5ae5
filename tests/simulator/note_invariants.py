"""Invariants of notes: condensing keeps every fact, and no fact of a forgotten session remains.

Each fact has a name, such as `k5` for `learnt in m5.`, which stays in the text when notes are condensed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from everthread.adapters.sqlite.connection import Connection
from everthread.domain.model import NoteTarget, NoteVersion
from everthread.domain.review_window import ReviewState, ReviewWindow
from everthread.lifecycle import ForgetSession
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator import operations as asked
from tests.simulator.backends import Backend
from tests.simulator.reference_model import ReferenceModel
from tests.simulator.reference_types import require

_LEARNT = re.compile(r"learnt in m(\d+)\.|\b(w\d+t?)\.|[(+](k\d+|w\d+t?)(?=[+)])")


def learnt(text: str) -> frozenset[str]:
    """Names of the facts in a note."""
    return frozenset(f"k{number}" if number else word or name for number, word, name in _LEARNT.findall(text))


def condensed(notes: Iterable[str]) -> str:
    """Condense notes to the names of their facts."""
    return f"({'+'.join(sorted({name for note in notes for name in learnt(note)}))})"


@dataclass
class NoteLedger:
    """Every version of every note."""

    reference: ReferenceModel
    database: Connection
    tables: UnitOfWork
    counts: Counter[str]
    versions: list[NoteVersion] = field(default_factory=list[NoteVersion])
    said: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Facts in the current notes, by owner."""
    by_hand: set[str] = field(default_factory=set[str])
    """Facts that a person wrote into a file. If they replaced a note of a session, they are forgotten with it."""
    forbidden_texts: dict[str, str] = field(default_factory=dict[str, str])
    """Facts known only from a forgotten session, with the id of that session."""

    def observe_result(self, operation: object | None, result: object) -> None:
        written = self._written()
        match operation, result:
            case asked.Rewrite() as rewrite, tuple():
                self._condensed(rewrite)
            case asked.SyncNotes(), _:
                self._mended(written)
                self.by_hand |= {name for version in written for name in learnt(version.content)}
            case asked.ForgetOperation() as forgetting, int() if not isinstance(result, bool):
                self._mended(written)
                self._blanked()
                if isinstance(forgetting.what, ForgetSession):
                    self._forgotten(forgetting.what.session_id, forgetting.owner)
            case _:
                pass
        self.versions += written
        if written or isinstance(operation, asked.ForgetOperation):
            for owner in {version.owner for version in written} | set(self.said):
                self.said[owner] = self._live(owner)

    def sources(self) -> list[tuple[str, str]]:
        """Sessions whose facts appear in notes of other sessions, with their owners."""
        current = [note for owner in self.said for t in NoteTarget for note in self.tables.notes.current(owner, t)]
        found: list[tuple[str, str]] = []
        for version in self.versions:
            place = (version.session_id, version.owner)
            if version.version == 1 and place not in found and place[0] in self.reference.sessions:
                names = learnt(version.content)
                if any(n.session_id != place[0] and n.owner == place[1] and learnt(n.content) & names for n in current):
                    found.append(place)
        return [place for place in found if not self._is_forgotten(place[0])]

    def _written(self) -> list[NoteVersion]:
        rows = list(self.database.execute("SELECT note_id, version FROM notes_written ORDER BY rowid"))
        self.database.execute("DELETE FROM notes_written")
        found = [self.tables.notes.version(note_id, version) for note_id, version in rows]
        return [version for version in found if version is not None]

    def _live(self, owner: str) -> frozenset[str]:
        notes = [note for target in NoteTarget for note in self.tables.notes.current(owner, target)]
        return frozenset(name for note in notes for name in learnt(note.content))

    def _condensed(self, rewrite: asked.Rewrite) -> None:
        before = frozenset(name for note in rewrite.rewriting.read for name in learnt(note.content))
        current = self.tables.notes.current(rewrite.owner, rewrite.rewriting.target)
        after = frozenset(name for note in current for name in learnt(note.content))
        require(
            before == after, f"condensed notes of {rewrite.owner} lost {before - after}, and say {after - before} more"
        )
        self.counts["collections condensed"] += 1

    # --- Forgetting --------------------------------------------------------------------------------------------------

    def _mended(self, written: list[NoteVersion]) -> None:
        for version in written:
            self.reference.mended(version)
            self.counts["notes mended"] += 1

    def _blanked(self) -> None:
        """Mark texts of erased note versions as forgotten: they need not be delivered."""
        for version in self.versions:
            now = self.tables.notes.version(version.note_id, version.version)
            if now is None or now.content != version.content:
                self.reference.words.forgotten.add(version.content)

    def _learnt_by(self, name: str) -> list[NoteVersion]:
        """First versions of notes with this fact, from sessions that are not forgotten."""
        first = [v for v in self.versions if v.version == 1 and name in learnt(v.content)]
        return [v for v in first if not self._is_forgotten(v.session_id)]

    def _is_forgotten(self, session_id: str) -> bool:
        session = self.reference.sessions.get(session_id)
        return session is not None and session.forgotten

    def _forgotten(self, session_id: str, owner: str) -> None:
        """Check that no fact of a forgotten session remains. Facts that others had noted too must be due for another
        review.
        """
        own = [v for v in self.versions if v.version == 1 and self._is_forgotten(v.session_id)]
        names = {name for v in own for name in learnt(v.content)}
        self.forbidden_texts |= {name: session_id for name in names if not self._learnt_by(name)}
        self.check_words()
        for name in self.said.get(owner, frozenset()) - self._live(owner) - set(self.forbidden_texts) - self.by_hand:
            require(
                any(self._is_looked_for(version) for version in self._learnt_by(name)),
                f"{session_id} was forgotten, and {name}, which others had noted, was lost with it",
            )

    def _is_looked_for(self, version: NoteVersion) -> bool:
        rows = self.tables.reviews.of_session(version.session_id)
        window = ReviewWindow.from_mark(version.turn_id)
        waits = [row.window for row in rows if row.state in (ReviewState.WAITING, ReviewState.RUNNING)]
        return window in waits if window is not None else bool(waits) or not rows

    def check_words(self) -> None:
        sql = "SELECT note_id, version, content FROM note_versions"
        for note_id, version, content in list(self.database.execute(sql)):
            known = learnt(content) & set(self.forbidden_texts)
            require(
                not known,
                f"{note_id}:{version} says {content!r}: {[self.forbidden_texts[k] for k in known]} was forgotten",
            )

    def check_back_ends(self, backends: dict[str, Backend]) -> None:
        """Check that no back end that mirrors notes by id still holds a forgotten fact."""
        for backend in backends.values():
            last: dict[str, tuple[int, str]] = {}
            # A fact that was forgotten by the id of its note is removed with the note.
            erased = {e.facts["note"] for e in backend.effects if e.kind == "forget" and e.facts["scope"] == "fact"}
            for effect in backend.effects:
                if effect.kind == "note" and not (
                    effect.facts["note"] in erased or self._is_forgotten(effect.ref.session_id)
                ):
                    told = (effect.facts["version"], effect.facts["text"])
                    last[effect.facts["note"]] = max(told, last.get(effect.facts["note"], told))
            for note_id, (_, text) in last.items():
                known = learnt(text) & set(self.forbidden_texts)
                require(not known, f"{backend.name} still has {note_id} as {text!r}, of {known}, which was forgotten")
