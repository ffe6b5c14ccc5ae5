"""Group messages into turns: a user message and everything up to the end of its answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from everthread.domain.export_format import MESSAGES_MAX, TurnLine
from everthread.domain.model import TurnStatus
from everthread.hermes_import.rows import MessageRow, line_of

RUNNING_S = 3600.0
"""Seconds after which Hermes no longer answers a message."""


class TurnRows(Struct, frozen=True):
    """The rows of a turn."""

    rows: tuple[MessageRow, ...]

    @property
    def hidden(self) -> bool:
        return all(row.rewound for row in self.rows)

    @property
    def status(self) -> TurnStatus:
        last = self.rows[-1]
        if last.ends_a_turn or last.role == "system":
            return TurnStatus.DONE
        return TurnStatus.SET_ASIDE if all(row.observed for row in self.rows) else TurnStatus.INTERRUPTED

    def may_grow(self, now: float) -> bool:
        """Return true if Hermes may still answer the turn."""
        return self.status is TurnStatus.INTERRUPTED and not self.hidden and now - self.rows[-1].at < RUNNING_S

    def line(self, session_id: str, number: int) -> TurnLine:
        # The id contains the first and the last row, so that a turn that has grown since gets another id.
        turn_id = f"{session_id}.{self.rows[0].id}-{self.rows[-1].id}"
        messages = tuple(line_of(row) for row in self.rows)
        return TurnLine(session_id, number, turn_id, self.rows[-1].at, messages, self.status, self.hidden)


def turns_of(rows: Iterable[MessageRow]) -> Iterator[TurnRows]:
    """Group rows into turns. A turn begins with a user message or after an answer, so an answered turn never grows."""
    some: list[MessageRow] = []
    for row in rows:
        if some and (_begins(row, some) or len(some) >= MESSAGES_MAX):
            yield TurnRows(tuple(some))
            some = []
        some.append(row)
    if some:
        yield TurnRows(tuple(some))


def _begins(row: MessageRow, before: Sequence[MessageRow]) -> bool:
    last = before[-1]
    if last.ends_a_turn or row.rewound != last.rewound:
        return True
    return row.role == "user" and any(each.role != "system" for each in before)
