"""What a session sees of the ones above it, leaving out those that were forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from everthread.domain.events import EntryKind
from everthread.domain.model import Kind, Session
from everthread.store.unit_of_work import UnitOfWork


class Above(Struct, frozen=True):
    """The nearest session above that is still there: which of its turns are seen, as of which position of its log."""

    parent: Session | None
    turn: int
    seq: int


def above(uow: UnitOfWork, session: Session) -> Above:
    """A forgotten session has no words of its own to show, and hides what was undone in it of those above."""
    turn, seq = session.base_turn, session.base_seq
    at = uow.sessions.get(session.parent_id) if session.parent_id is not None else None
    while at is not None and at.forgotten_seq is not None:
        undone = (
            n for entry in uow.log.of_kind(at.id, EntryKind.REWIND) if entry.seq <= seq for n in rewound(entry.detail)
        )
        # Whatever is undone is the end of what was seen then, so that the rest is all that lies before it.
        turn = min((turn, at.base_turn, *(n - 1 for n in undone)))
        seq = at.base_seq
        at = uow.sessions.get(at.parent_id) if at.parent_id is not None else None
    if at is None or at.kind is Kind.NOTES:
        return Above(None, session.base_turn, session.base_seq)
    return Above(at, turn, seq)


def rewound(detail: object) -> tuple[int, ...]:
    """The turns that a rewind names in the log."""
    numbers = detail.get("turns") if isinstance(detail, dict) else None  # pyright: ignore
    return tuple(sorted(int(n) for n in numbers)) if isinstance(numbers, list) else ()  # pyright: ignore


def without(turns: Iterable[int], base: int, session: Session) -> tuple[int, ...]:
    """Those of some turns that are there if a session is cut off from what lies between `base` and its own."""
    return tuple(number for number in turns if number <= base or number > session.base_turn)
