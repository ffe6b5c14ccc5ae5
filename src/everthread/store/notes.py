"""Curated notes with all their versions, and digests of their files."""

from __future__ import annotations

import hashlib
from typing import Any

from everthread.domain.model import NoteAction, NoteAuthor, NoteTarget, NoteVersion
from everthread.domain.recall_scope import RecallScope
from everthread.store.database import Table

COLUMNS = "note_id, version, owner, target, action, content, session_id, turn_id, at, author, chat"
_OF_VERSION = ", ".join(f"v.{column}" for column in COLUMNS.split(", "))


def _version(row: tuple[Any, ...]) -> NoteVersion:
    note_id, version, owner, target, action, content, session_id, turn_id, at, author, chat = row
    return NoteVersion(
        *(note_id, version, owner, NoteTarget(target), NoteAction(action), content, session_id, turn_id, at),
        NoteAuthor(author) if author else None,
        chat,
    )


def digest(text: str) -> str:
    """Return the digest of a note file, or of an entry in it."""
    return hashlib.sha256(text.encode()).hexdigest()


class Notes(Table):
    """Notes, each with a current version. `DerivedText.put_note` writes them."""

    def current(self, owner: str, target: NoteTarget) -> tuple[NoteVersion, ...]:
        rows = self._execute(
            f"SELECT {_OF_VERSION} FROM notes n "
            "JOIN note_versions v ON v.note_id = n.note_id AND v.version = n.version "
            "WHERE n.owner = ? AND n.target = ? AND n.live ORDER BY n.note_id",
            (owner, target.value),
        )
        return tuple(_version(row) for row in rows)

    def visible(self, scope: RecallScope, target: NoteTarget) -> tuple[NoteVersion, ...]:
        """Return the current notes that a session with this scope may be shown."""
        notes = self.current(scope.owner, target)
        return notes if scope.chat is None else tuple(note for note in notes if note.chat == scope.chat)

    def get(self, note_id: str) -> NoteVersion | None:
        rows = self.versions(note_id)
        return rows[-1] if rows else None

    def version(self, note_id: str, version: int) -> NoteVersion | None:
        row = self._first(f"SELECT {COLUMNS} FROM note_versions WHERE note_id = ? AND version = ?", (note_id, version))
        return _version(row) if row else None

    def newest(self, note_id: str) -> int:
        """Return the number of the newest version; 0 if there is no such note."""
        row = self._first("SELECT MAX(version) FROM note_versions WHERE note_id = ?", (note_id,))
        return row[0] or 0 if row else 0

    def versions(self, note_id: str) -> tuple[NoteVersion, ...]:
        rows = self._execute(f"SELECT {COLUMNS} FROM note_versions WHERE note_id = ? ORDER BY version", (note_id,))
        return tuple(_version(row) for row in rows)

    def history(self, owner: str, limit: int) -> tuple[NoteVersion, ...]:
        """Return every change of the owner's notes, the newest first."""
        rows = self._execute(
            f"SELECT {COLUMNS} FROM note_versions WHERE owner = ? ORDER BY at DESC, note_id DESC, version DESC LIMIT ?",
            (owner, limit),
        )
        return tuple(_version(row) for row in rows)

    def written_in(self, session_id: str) -> tuple[str, ...]:
        """Return the ids of the notes of which a version was written in the session."""
        rows = self._execute("SELECT DISTINCT note_id FROM note_versions WHERE session_id = ?", (session_id,))
        return tuple(row[0] for row in rows)

    def of_owner(self, owner: str) -> tuple[NoteVersion, ...]:
        """Return every version of every note, in no order."""
        return tuple(
            _version(row) for row in self._execute(f"SELECT {COLUMNS} FROM note_versions WHERE owner = ?", (owner,))
        )

    def file_digest(self, owner: str, target: NoteTarget) -> str | None:
        row = self._first("SELECT digest FROM projections WHERE owner = ? AND target = ?", (owner, target.value))
        return row[0] if row else None

    def set_file_digest(self, owner: str, target: NoteTarget, digest: str) -> None:
        self._execute(
            "INSERT INTO projections (owner, target, digest) VALUES (?, ?, ?) "
            "ON CONFLICT (owner, target) DO UPDATE SET digest = excluded.digest",
            (owner, target.value, digest),
        )
