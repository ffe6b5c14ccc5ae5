"""The recall that each turn was shown: ids, scores and sources, never text.

It finds the answers that may quote text which was forgotten since, and what was recalled for an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from everthread.store.database import Table
from everthread.store.sql import placeholders

ITEMS_MAX = 32
"""Rows for one turn. Further items are left out, the least relevant of each source first."""
QUOTING_MAX = 1000
_NUMBER_MAX = 2**53
_OF_TURN = "r.source, r.session_id, r.number, r.note_id, r.score"


class RecalledItem(Struct, frozen=True):
    """One memory that a turn was shown."""

    source: str
    """The memory provider that returned it, or the tool that found it."""
    session_id: str = ""
    """The session that it comes from; empty if that is not known."""
    number: int | None = None
    """The turn in that session."""
    note_id: str = ""
    score: float = 0.0


class QuotingTurn(Struct, frozen=True):
    """A turn whose answer may quote forgotten text."""

    session_id: str
    number: int
    at: float
    row: int
    """The id of the row of the turn."""


class Recalled(Table):
    """The recall of each turn. Rows are written with the turn and pruned with it."""

    def add(self, session_id: str, number: int, owner: str, items: Sequence[RecalledItem]) -> None:
        """Store the items of a turn that was just added, in one statement.

        A provider may return any text as an id. So an id is stored only if it is that of a session or a note of the
        owner.
        """
        bindings = [value for item in enumerate(_distinct(items)) for value in _row(*item)]
        if not bindings:
            return
        values = ", ".join([f"({placeholders(6)})"] * (len(bindings) // 6))
        self._execute(
            f"WITH items (place, source, session_id, number, note_id, score) AS (VALUES {values}) "
            "INSERT INTO recalled (turn, place, source, session_id, number, note_id, score) "
            "SELECT t.id, i.place, i.source, COALESCE(s.id, ''), CASE WHEN s.id IS NULL THEN NULL ELSE i.number END, "
            "COALESCE(n.note_id, ''), i.score FROM items i JOIN turns t ON t.session_id = ? AND t.number = ? "
            "LEFT JOIN sessions s ON s.id = i.session_id AND s.owner = ? "
            "LEFT JOIN notes n ON n.note_id = i.note_id AND n.owner = ?",
            (*bindings, session_id, number, owner, owner),
        )

    def of_turn(self, session_id: str, number: int) -> tuple[RecalledItem, ...]:
        """Return the recall that a turn was shown, in its order."""
        rows = self._execute(
            f"SELECT {_OF_TURN} FROM turns t JOIN recalled r ON r.turn = t.id "
            "WHERE t.session_id = ? AND t.number = ? ORDER BY r.place",
            (session_id, number),
        )
        return tuple(RecalledItem(*row) for row in rows)

    def quoting(
        self, owner: str, *, sessions: Sequence[str] = (), turns: Sequence[int] = (), notes: Sequence[str] = ()
    ) -> tuple[QuotingTurn, ...]:
        """Return the owner's turns that were shown recall of these sessions, turns (by their row id) or notes.

        Turns that were shown recall of such a turn are included. Turns of `sessions` and forgotten ones are not.
        """
        found = dict.fromkeys(turns, False)
        for session_id in sessions:
            rows = self._execute("SELECT turn FROM recalled WHERE session_id = ? ORDER BY turn", (session_id,))
            found |= {row[0]: True for row in rows}
        for note_id in notes:
            rows = self._execute("SELECT turn FROM recalled WHERE note_id = ? ORDER BY turn", (note_id,))
            found |= {row[0]: True for row in rows}
        waiting = list(found)
        while waiting and len(found) < QUOTING_MAX + len(turns):
            more = [turn for turn in self._shown_to(waiting.pop(0)) if not found.get(turn)]
            waiting += [turn for turn in more if turn not in found]
            found |= dict.fromkeys(more, True)
        quoting = (self._quoting_turn(turn, owner) for turn, is_shown in sorted(found.items()) if is_shown)
        return tuple(turn for turn in quoting if turn is not None and turn.session_id not in sessions)[:QUOTING_MAX]

    def _shown_to(self, turn: int) -> list[int]:
        """Return the turns that were shown recall of this turn."""
        rows = self._execute(
            "SELECT r.turn FROM turns t JOIN recalled r ON r.session_id = t.session_id AND r.number = t.number "
            "WHERE t.id = ? ORDER BY r.turn",
            (turn,),
        )
        return [row[0] for row in rows]

    def _quoting_turn(self, turn: int, owner: str) -> QuotingTurn | None:
        row = self._first(
            "SELECT t.session_id, t.number, t.at, t.id FROM turns t JOIN sessions s ON s.id = t.session_id "
            "WHERE t.id = ? AND t.owner = ? AND s.forgotten_seq IS NULL",
            (turn, owner),
        )
        return QuotingTurn(*row) if row else None


def _distinct(items: Sequence[RecalledItem]) -> Sequence[RecalledItem]:
    known: dict[tuple[str, int | None, str], RecalledItem] = {}
    for item in items:
        known.setdefault(
            (item.session_id, item.number, item.note_id)
            if item.session_id or item.note_id
            else (item.source, len(known), ""),
            item,
        )
    return list(known.values())[:ITEMS_MAX]


def _row(place: int, item: RecalledItem) -> Iterator[Any]:
    # Providers may return any number.
    number = item.number if item.number is not None and 0 <= item.number < _NUMBER_MAX else None
    score = item.score if math.isfinite(item.score) else 0.0
    yield from (place, item.source, item.session_id, number, item.note_id, score)
