"""The `media` column of the inbox, and files of erased messages that are still to be removed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from everthread.domain.media import Media
from everthread.store.database import Execute, Table


class Attachments(Table):
    """Files that came with erased or pruned messages and are still on the disk."""

    def discarded(self) -> tuple[str, ...]:
        """Return the files to remove, as paths within the attachment folder."""
        return tuple(path for (path,) in self._execute("SELECT path FROM discarded ORDER BY path"))

    def paths(self, owner: str) -> tuple[str, ...]:
        """Return the paths of the owner's attachments within the attachment folder."""
        rows = self._execute("SELECT media FROM inbox WHERE media <> '' AND owner = ?", (owner,))
        return tuple(media.path for (text,) in rows for media in media_in(text) if media.path)

    def discard(self, owner: str, paths: Collection[str]) -> None:
        """Mark these files of the owner for removal, with the others of their messages."""
        rows = self._execute("SELECT id, media FROM inbox WHERE media <> '' AND owner = ?", (owner,))
        named = [(number, text) for number, text in rows if any(media.path in paths for media in media_in(text))]
        discard_rows(self._execute, named)

    def mark_removed(self, path: str) -> None:
        """Record that the file was removed."""
        self._execute("DELETE FROM discarded WHERE path = ?", (path,))


def media_in(text: str) -> tuple[Media, ...]:
    """Decode the `media` column."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[Media, ...])
    except msgspec.DecodeError:
        # Erasing a fact has cut the JSON: the message loses its attachments.
        return ()


def media_text(media: tuple[Media, ...]) -> str:
    return msgspec.json.encode(media).decode() if media else ""


def discard_unfetched(execute: Execute, inbox_id: int, text: str) -> None:
    """Mark files for removal that will not be fetched any more; an interrupted download may have left a part."""
    unfetched = [media for media in media_in(text) if media.handle]
    for media in unfetched:
        _note(execute, media)
    if unfetched:
        execute("UPDATE inbox SET media_bytes = 0 WHERE id = ?", (inbox_id,))


def discard(execute: Execute, owner: str, session_id: str | None = None) -> None:
    """Mark the attachments of the owner's messages, or of one session's, for removal."""
    some, values = ("", ()) if session_id is None else ("AND session_id = ?", (session_id,))
    rows = execute(f"SELECT id, media FROM inbox WHERE media <> '' AND owner = ? {some}", (owner, *values))
    discard_rows(execute, [(number, text) for number, text in rows])


def discard_rows(execute: Execute, rows: Sequence[tuple[int, str]]) -> None:
    """Mark the attachments of these inbox rows for removal: the id of each, and its `media` column."""
    for number, text in rows:
        for media in media_in(text):
            _note(execute, media)
        execute("UPDATE inbox SET media = '' WHERE id = ?", (number,))


def _note(execute: Execute, media: Media) -> None:
    if media.path:
        execute("INSERT INTO discarded (path) VALUES (?) ON CONFLICT DO NOTHING", (media.path,))
