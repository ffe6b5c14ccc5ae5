"""What goes for good, and sessions that come or go as a whole."""

from __future__ import annotations

from typing import Protocol

from everthread.domain.model import NoteVersion, Session


class Forgetting(Protocol):
    def scrub_session(self, session: Session) -> tuple[str, ...]:
        """What the notes said that were written in it."""
        ...

    def scrub_descendants(self, session: Session, session_ids: tuple[str, ...]) -> None: ...
    def scrub_notes(self, owner: str, versions: tuple[NoteVersion, ...]) -> None:
        """Blank these, and let go of the prefixes that they may stand in."""
        ...

    def scrub_owner(self, owner: str) -> tuple[str, ...]:
        """What the owner's notes said."""
        ...

    def scrub_fact(self, note_id: str, owner: str) -> tuple[str, ...]:
        """The wordings that the note had."""
        ...

    def bury(self, kind: str, identity: str, owner: str, now: float) -> None:
        """Leave a tombstone against replay and import."""
        ...

    def purge(self, *, begin: bool) -> bool:
        """Take a slice of what is marked as deleted out of the search index for good; true if there is more to do."""
        ...

    def discarded(self) -> tuple[str, ...]:
        """Files that came with what was forgotten or pruned, and are still to be removed: paths within their folder."""
        ...

    def removed(self, path: str) -> None: ...
    def told(self, session_id: str, seq: int) -> None:
        """A provider has been told to forget a fact; once all have, the fact's words go from the log as well."""
        ...

    def burials(self, owner: str) -> int:
        """How often something of the owner's was forgotten: whatever was read before the last time may not be used."""
        ...

    def buried(self, kind: str, identity: str) -> bool: ...


class Archive(Protocol):
    """Sessions that come or go as a whole."""

    def untold(self, session_id: str) -> bool:
        """Whether some provider has not been told all of the session's log."""
        ...

    def count_as_told(self, session_id: str) -> None:
        """Every provider there is now counts as told of all that the session's log has so far."""
        ...

    def ended_before(self, before: float, session_id: str | None = None) -> tuple[Session, ...]:
        """Conversations that ended, and were last active, before then, and that nobody is on or at work for."""
        ...

    def children(self, parent_id: str | None = None) -> tuple[tuple[str, str], ...]:
        """Who grew out of whom, of all that are not forgotten: the child, and the nearest above it that is not."""
        ...

    def holds_the_newest(self, session_id: str) -> bool:
        """Whether the newest turn or log entry of all is the session's: their numbers must not be given again."""
        ...

    def remove(self, session_id: str) -> int:
        """Take every row of the session's conversation away; how many turns it had. Notes and the audit trail stay."""
        ...
