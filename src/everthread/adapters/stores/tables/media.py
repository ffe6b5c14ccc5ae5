"""What came with messages, as the inbox has it, and the files that are to be removed."""

from __future__ import annotations

import msgspec

from everthread.adapters.stores.tables.rows import Execute, run
from everthread.domain.media import Media


def media_in(text: str) -> tuple[Media, ...]:
    """What a row says came with a message: mostly nothing."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[Media, ...])
    except msgspec.DecodeError:
        # A fact that was forgotten stood in the middle of it: the message is left without what came with it.
        return ()


def media_text(media: tuple[Media, ...]) -> str:
    return msgspec.json.encode(media).decode() if media else ""


def discard_unfetched(execute: Execute, text: str) -> None:
    """Note for removal what nobody will fetch any more: whoever began to, and died, may have left a part of it."""
    for media in media_in(text):
        if media.handle:
            _note(execute, media)


def discard(execute: Execute, owner: str, session_id: str | None = None) -> None:
    """Note for removal what came with the owner's messages, or with those of one session."""
    came = "SELECT id, media FROM inbox WHERE media <> '' AND owner = ? AND (? IS NULL OR session_id = ?)"
    rows = list(execute(came, (owner, session_id, session_id)))
    for number, text in rows:
        for media in media_in(text):
            _note(execute, media)
        run(execute("UPDATE inbox SET media = '' WHERE id = ?", (number,)))


def _note(execute: Execute, media: Media) -> None:
    if media.path:
        run(execute("INSERT INTO discarded (path) VALUES (?) ON CONFLICT DO NOTHING", (media.path,)))
