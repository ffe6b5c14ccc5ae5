"""Text derived from an owner's data: prefixes, summaries, generated titles, notes, and what else a review writes.

Its source may be forgotten while text is being derived. So the caller reads the owner's number of forget requests
(`Erasure.forget_count`) together with the source, and passes it here with the text. If the number has changed, nothing
is stored and `Outdated` is raised; the caller derives the text again, or drops it. A running turn has no number: its
slot has marks of what was forgotten. No other module inserts prefixes, summaries or notes.
"""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.errors import Outdated
from everthread.domain.model import NoteAction, NoteVersion, Prefix, Session
from everthread.store.database import Database, Table
from everthread.store.erasure import Erasure
from everthread.store.notes import COLUMNS
from everthread.store.sessions import Sessions
from everthread.store.sql import placeholders


class NoteSource(Struct, frozen=True):
    """The source of a note: text that a review has read at `forget_count`, or that a running turn has read."""

    forget_count: int | None = None
    turn_id: str | None = None

    @property
    def is_review(self) -> bool:
        return self.forget_count is not None


WRITTEN = NoteSource()
"""Nothing was derived: a person wrote the text, or it is stored already."""


class DerivedText(Table):
    """Store derived text, unless something was forgotten since its source was read."""

    def __init__(self, database: Database, erasure: Erasure, sessions: Sessions) -> None:
        super().__init__(database)
        self._erasure = erasure
        self._sessions = sessions

    def check(self, owner: str, forget_count: int) -> None:
        """Raise `Outdated` if something of the owner was forgotten since `forget_count` was read."""
        if self._erasure.forget_count(owner) != forget_count:
            raise Outdated("something was forgotten meanwhile, so text derived from it is not stored; try again")

    def check_turn(self, turn_id: str) -> None:
        """Raise `Outdated` if a fact was forgotten while the turn ran."""
        if self._exists("SELECT 1 FROM slots WHERE turn_id = ? AND forgotten <> ''", (turn_id,)):
            raise Outdated("something was forgotten while this turn ran; write the note in the next turn")

    def put_prefix(self, prefix: Prefix, owner: str, forget_count: int) -> None:
        self.check(owner, forget_count)
        self._execute(
            "INSERT INTO prefixes (session_id, number, owner, content, at) VALUES (?, ?, ?, ?, ?)",
            (prefix.session_id, prefix.number, owner, prefix.content, prefix.at),
        )

    def copy_prefix(self, parent: Session, child: Session, at: float) -> None:
        """Copy the parent's newest prefix to a branch, byte for byte.

        It needs no check: forgetting has already deleted every stored prefix that contains the words.
        """
        self._execute(
            "INSERT INTO prefixes (session_id, number, owner, content, at) SELECT ?, 1, ?, content, ? FROM prefixes "
            "WHERE session_id = ? ORDER BY number DESC LIMIT 1",
            (child.id, child.owner, at, parent.id),
        )

    def put_summary(self, session: Session, summary: str, forget_count: int) -> None:
        """Store the summary that the session begins with."""
        self.check(session.owner, forget_count)
        self._execute("INSERT INTO summaries VALUES (?, ?, ?)", (session.id, session.owner, summary))

    def set_title(self, session: Session, title: str, forget_count: int) -> None:
        """Store a title that was generated from the conversation."""
        self.check(session.owner, forget_count)
        self._sessions.set_title(session.id, title)

    def put_note(self, version: NoteVersion, source: NoteSource) -> None:
        """Store a version of a note, which becomes the current one."""
        if source.forget_count is not None:
            self.check(version.owner, source.forget_count)
        if source.turn_id is not None:
            self.check_turn(source.turn_id)
        v = version
        self._execute(
            f"INSERT INTO note_versions ({COLUMNS}) VALUES ({placeholders(11)})",
            (
                *(v.note_id, v.version, v.owner, v.target.value, v.action.value),
                *(v.content, v.session_id, v.turn_id, v.at, v.author and v.author.value, v.chat),
            ),
        )
        self._execute(
            "INSERT INTO notes (note_id, owner, target, version, live) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (note_id) DO UPDATE SET version = excluded.version, live = excluded.live",
            (v.note_id, v.owner, v.target.value, v.version, v.action is not NoteAction.REMOVE),
        )
