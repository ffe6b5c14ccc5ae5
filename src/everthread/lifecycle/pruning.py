"""Removing old conversations from the store. What memory has learned from them stays, and so do notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from everthread.domain.model import Session
from everthread.ports.store import UnitOfWork


class Prunable(Struct, frozen=True):
    """What would go, children before their parents, and what stays although it is old enough."""

    sessions: tuple[Session, ...]
    needed: int = 0
    """A session that is not removed grew out of them, and shows their turns."""
    untold: int = 0
    """Memory has not been told all of them yet."""


def prunable(uow: UnitOfWork, before: float) -> Prunable:
    old = uow.archive.ended_before(before)
    untold = {session.id for session in old if uow.archive.untold(session.id)}
    told = [s for s in old if s.id not in untold and not uow.archive.holds_the_newest(s.id)]
    order = leaves_first({session.id for session in told}, uow.archive.children())
    by_id = {session.id: session for session in told}
    gone = tuple(by_id[session_id] for session_id in order)
    return Prunable(gone, needed=len(told) - len(gone), untold=len(untold))


def leaves_first(removable: set[str], children: Iterable[tuple[str, str]]) -> list[str]:
    """Those of which all that grew out of them goes too, in an order in which each can go."""
    parent_of: dict[str, str] = {}
    left: dict[str, int] = dict.fromkeys(removable, 0)
    for parent, child in children:
        parent_of[child] = parent
        if parent in left:
            left[parent] += 1
    order = sorted(session_id for session_id, count in left.items() if not count)
    for session_id in order:
        order += _freed(session_id, parent_of, left)
    return order


def _freed(session_id: str, parent_of: Mapping[str, str], left: dict[str, int]) -> list[str]:
    """The parent, if nothing but this one was left of its children."""
    parent = parent_of.get(session_id, "")
    if parent not in left:
        return []
    left[parent] -= 1
    return [parent] if not left[parent] else []


def prune(uow: UnitOfWork, session_id: str, before: float) -> int | None:
    """Remove one session, if it may still go: what was planned may have changed since."""
    if not uow.archive.ended_before(before, session_id) or uow.archive.children(session_id):
        return None
    if uow.archive.untold(session_id) or uow.archive.holds_the_newest(session_id):
        return None
    # What is taken out of the index must be in it: what comes to it later would bring the words back.
    uow.turns.index()
    return uow.archive.remove(session_id)
