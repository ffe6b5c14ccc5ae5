"""Erase forgotten facts from error messages, which may arrive much later, and from entries of the table `log`.

Tested in tests/unit/lifecycle/test_forget_races.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from everthread.domain.forgotten_words import ForgottenWords, Mark, WordMark
from everthread.store.database import Execute
from everthread.store.sql import from_json, to_json


def words_of(execute: Execute, owner: str) -> ForgottenWords:
    """Return the forgotten facts of an owner."""
    return ForgottenWords(marks_of(execute, owner))


def marks_of(execute: Execute, owner: str) -> Iterator[Mark]:
    """Return the marks of an owner's forgotten facts."""
    return _marks(execute, "owner = ?", owner)


def erase_facts_of(execute: Execute, text: str, owner: str) -> str:
    """Erase the forgotten facts of an owner from an error message that may quote them."""
    return words_of(execute, owner).erase(text) if text else text


def erase_forgotten_facts(execute: Execute, text: str, session_id: str | None) -> str:
    """Erase the forgotten facts of the session's owner from an error message that may quote them.

    Without a session, the facts of all owners are erased.
    """
    if not text:
        return text
    if session_id is None:
        found = _marks(execute, "true")
    else:
        found = _marks(execute, "owner = (SELECT owner FROM sessions WHERE id = ?)", session_id)
    return ForgottenWords(found).erase(text)


def _marks(execute: Execute, whose: str, *values: str) -> Iterator[Mark]:
    rows = execute(f"SELECT owner, marks FROM tombstones WHERE kind = 'fact' AND marks <> '' AND {whose}", values)
    for owner, marks in rows:
        for mark in from_json(marks):
            yield owner, WordMark(*mark)


def remove_request_text(execute: Execute, session_id: str, seq: int) -> None:
    """Erase the words of a fact from the log entry that asks providers to forget it."""
    for (detail,) in execute("SELECT detail FROM log WHERE session_id = ? AND seq = ?", (session_id, seq)):
        if detail:
            rest = to_json({name: value for name, value in from_json(detail).items() if name != "text"})
            execute("UPDATE log SET detail = ? WHERE session_id = ? AND seq = ?", (rest, session_id, seq))
