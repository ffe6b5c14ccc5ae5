"""Taking an exported session in, from its first line to its last, in as many units of work as it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from everthread.domain.errors import Gone
from everthread.domain.exchange import Base, Item, RewindLine, SessionLine, TurnLine
from everthread.domain.model import SessionKey
from everthread.lifecycle.importing import (
    Different,
    Found,
    Imported,
    InUse,
    Outcome,
    add,
    begin,
    find,
    finish,
    go_on,
    is_busy,
    news,
)
from everthread.ports import Store
from everthread.ports.store import UnitOfWork

ITEMS_AT_ONCE = 200
CHARS_AT_ONCE = 4_000_000


Items = Iterable[Item] | Callable[[Found], Iterable[Item]]
"""A session's lines; or what makes them, from what is here, where their source has no order of its own."""


class Arrival(Struct, frozen=True):
    """A session on its way in, and what became of those before it in the file."""

    line: SessionLine
    owner: str
    before: Mapping[str, Imported]
    routed: frozenset[SessionKey] = frozenset()
    """Keys that were put on it because its source has them there: nobody is disturbed at them."""


async def take_in(store: Store, now: Callable[[], float], arrival: Arrival, items: Items, *, dry_run: bool) -> Imported:
    """Import what is new, some turns at a time: if it is cut short, the same import goes on with it."""
    found = await store.read(lambda uow: find(uow, arrival.line, arrival.owner, arrival.before))
    session_id = found.session_id
    if found.outcome is Outcome.FORGOTTEN:
        # What is left of it, without its words, is still what its children grew out of.
        there = await store.read(lambda uow: uow.sessions.get(session_id)) is not None
        return Imported(found.outcome, session_id if there else None)
    if found.outcome.why:
        return Imported(found.outcome, None)
    is_new = found.outcome is Outcome.NEW
    batches = _batches(news(found, items(found) if callable(items) else items))
    try:
        some = next(batches, None)
    except Different:
        return Imported(Outcome.DIFFERENT, None)
    if some is None and not is_new:
        return Imported(Outcome.SAME, session_id)
    has = Base(max(found.turns, default=arrival.line.base.turn), len(found.rewinds))
    if not is_new and await store.read(lambda uow: is_busy(uow, session_id, arrival.routed)):
        return Imported(Outcome.BUSY, session_id, has=has)
    opening, turns, left_at = is_new, 0, found.left_at
    while some is not None or opening:
        following = next(batches, None)
        if not dry_run:
            at = None if opening else left_at
            write = _write(arrival, session_id, some or (), now, left_at=at, last=following is None)
            try:
                left_at = await store.write(write)
            except InUse:
                # What is here of it is as the file has it; the same import goes on with it later.
                return Imported(Outcome.BUSY, None if opening else session_id, turns, has)
            except Gone:
                return Imported(Outcome.FORGOTTEN, session_id, turns)
        turns += sum(isinstance(item, TurnLine) for item in some or ())
        has = _behind(has, some or ())
        some, opening = following, False
    return Imported(Outcome.NEW if is_new else Outcome.GROWN, session_id, turns)


def _behind(has: Base, some: Sequence[Item]) -> Base:
    """How far a session is here once these are, too."""
    numbers = [item.number for item in some if isinstance(item, TurnLine)]
    return Base(max(numbers, default=has.turn), has.rewinds + sum(isinstance(item, RewindLine) for item in some))


def _write(
    arrival: Arrival,
    session_id: str,
    some: Sequence[Item],
    now: Callable[[], float],
    *,
    left_at: int | None,
    last: bool,
) -> Callable[[UnitOfWork], int]:
    """One unit of work: most sessions need no second one. It begins one that is not here yet, or goes on where the
    one before it has left the session; then it leaves it at a position of its log.
    """

    def write(uow: UnitOfWork) -> int:
        if left_at is None:
            begin(uow, arrival.line, session_id, arrival.owner, arrival.before, now())
        else:
            go_on(uow, session_id, left_at, arrival.routed)
        behind = add(uow, session_id, some)
        if last:
            finish(uow, arrival.line, session_id, now(), arrival.routed)
        return behind

    return write


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Few enough at a time that nobody who wants to write waits for long."""
    some: list[Item] = []
    chars = 0
    for item in items:
        some.append(item)
        chars += sum(len(message.content) for message in item.messages) if isinstance(item, TurnLine) else 0
        if len(some) >= ITEMS_AT_ONCE or chars >= CHARS_AT_ONCE:
            yield some
            some, chars = [], 0
    if some:
        yield some
