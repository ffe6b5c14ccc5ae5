"""Text derived from an owner's data: prefixes, summaries, generated titles, and everything that a review writes.

Its source may be forgotten while text is being derived. So the caller reads the owner's number of forget requests
(`Erasure.forget_count`) together with the source, and passes it here with the text. If the number has changed, nothing
is stored and `Outdated` is raised; the caller derives the text again, or drops it. No other module inserts prefixes or
summaries.
"""

from __future__ import annotations

from everthread.domain.errors import Outdated
from everthread.domain.model import Prefix, Session
from everthread.store.database import Database, Table
from everthread.store.erasure import Erasure
from everthread.store.sessions import Sessions


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
