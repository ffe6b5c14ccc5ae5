"""Lineage of a session: the ancestor turns that it shows, without forgotten sessions."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from everthread.domain.events import EntryKind
from everthread.domain.model import Session, SessionKind
from everthread.store.unit_of_work import UnitOfWork


class Ancestor(Struct, frozen=True):
    """The nearest ancestor that was not forgotten, the last of its turns that is shown, and the log position."""

    parent: Session | None
    turn: int
    seq: int


def nearest_ancestor(uow: UnitOfWork, session: Session) -> Ancestor:
    """Find the nearest ancestor that was not forgotten.

    A forgotten session shows no turns of its own, but its rewinds of inherited turns stay in effect.
    """
    turn, seq = session.base_turn, session.base_seq
    at = uow.sessions.get(session.parent_id) if session.parent_id is not None else None
    while at is not None and at.forgotten_seq is not None:
        undone = (
            n
            for entry in uow.log.of_kind(at.id, EntryKind.REWIND)
            if entry.seq <= seq
            for n in rewound_turns(entry.detail)
        )
        # A rewind hides the last shown turns, so every turn before them is still shown.
        turn = min((turn, at.base_turn, *(n - 1 for n in undone)))
        seq = at.base_seq
        at = uow.sessions.get(at.parent_id) if at.parent_id is not None else None
    if at is None or at.kind is SessionKind.NOTES:
        return Ancestor(None, session.base_turn, session.base_seq)
    return Ancestor(at, turn, seq)


def rewound_turns(detail: object) -> tuple[int, ...]:
    """Return the turn numbers in the log detail of a rewind, sorted."""
    numbers = detail.get("turns") if isinstance(detail, dict) else None  # pyright: ignore
    return tuple(sorted(int(n) for n in numbers)) if isinstance(numbers, list) else ()  # pyright: ignore


def drop_inherited(turns: Iterable[int], base: int, session: Session) -> tuple[int, ...]:
    """Drop the inherited turns after `base`; keep the session's own turns."""
    return tuple(number for number in turns if number <= base or number > session.base_turn)
