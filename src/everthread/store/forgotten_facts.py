"""Erase forgotten facts from error messages, which may arrive long after the fact was forgotten, and from the log.

Tested in tests/unit/lifecycle/test_forget_races.py.
"""

from __future__ import annotations

from everthread.domain.forgotten_words import WordMark, erase_marked
from everthread.store.database import Execute
from everthread.store.sql import from_json, to_json


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


def strip_text(execute: Execute, session_id: str, seq: int) -> None:
    """Erase the words of a fact from the log entry that asks providers to forget it."""
    for (detail,) in execute("SELECT detail FROM log WHERE session_id = ? AND seq = ?", (session_id, seq)):
        if detail:
            rest = to_json({name: value for name, value in from_json(detail).items() if name != "text"})
            execute("UPDATE log SET detail = ? WHERE session_id = ? AND seq = ?", (rest, session_id, seq))
