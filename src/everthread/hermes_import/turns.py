"""Messages made into turns: what a person said, and all that came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from everthread.domain.export_format import MESSAGES_MAX, TurnLine
from everthread.domain.model import TurnStatus
from everthread.hermes_import.rows import MessageRow, line_of

RUNNING_S = 3600.0
"""What was not answered for so long is not answered any more."""


class Asked(Struct, frozen=True):
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
        """Whether Hermes may be about to answer it."""
        return self.status is TurnStatus.INTERRUPTED and not self.hidden and now - self.rows[-1].at < RUNNING_S

    def line(self, session_id: str, number: int) -> TurnLine:
        # Both ends are in the id: a turn that has grown since is not taken for the one it was.
        turn_id = f"{session_id}.{self.rows[0].id}-{self.rows[-1].id}"
        messages = tuple(line_of(row) for row in self.rows)
        return TurnLine(session_id, number, turn_id, self.rows[-1].at, messages, self.status, self.hidden)


def turns_of(rows: Iterable[MessageRow]) -> Iterator[Asked]:
    """A turn begins with a person's words, and behind an answer: so a turn that was answered never grows."""
    some: list[MessageRow] = []
    for row in rows:
        if some and (_begins(row, some) or len(some) >= MESSAGES_MAX):
            yield Asked(tuple(some))
            some = []
        some.append(row)
    if some:
        yield Asked(tuple(some))


def _begins(row: MessageRow, before: Sequence[MessageRow]) -> bool:
    last = before[-1]
    if last.ends_a_turn or row.rewound != last.rewound:
        return True
    return row.role == "user" and any(each.role != "system" for each in before)
