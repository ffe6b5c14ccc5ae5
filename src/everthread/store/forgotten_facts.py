"""Erase forgotten facts from error messages, which may arrive long after the fact was forgotten."""

from __future__ import annotations

from everthread.domain.forgotten_words import WordMark, erase_marked
from everthread.store.database import Execute


def marks_of(execute: Execute, owner: str) -> tuple[WordMark, ...]:
    """Return the marks of the owner's forgotten facts."""
    rows = execute(
        "SELECT chars, checksum, identity FROM tombstones WHERE kind = 'fact' AND chars IS NOT NULL AND owner = ?",
        (owner,),
    )
    return tuple(WordMark(*row) for row in rows)


def erase_known(execute: Execute, text: str, session_id: str | None) -> str:
    """Erase the forgotten facts of the session's owner, or of everybody, from an error message that may quote them."""
    if not text:
        return text
    whose = "true" if session_id is None else "owner = (SELECT owner FROM sessions WHERE id = ?)"
    rows = execute(
        "SELECT owner, chars, checksum, identity FROM tombstones "
        f"WHERE kind = 'fact' AND chars IS NOT NULL AND {whose} ORDER BY chars DESC",
        () if session_id is None else (session_id,),
    )
    for owner, *mark in rows:
        text = erase_marked(text, owner, (WordMark(*mark),))
    return text
