"""Taking an exported session in, from its first line to its last, in as many units of work as it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from everthread.domain.exchange import Item, SessionLine, TurnLine
from everthread.lifecycle.importing import Different, Outcome, add, begin, find, finish, is_busy, news
from everthread.ports import Store
from everthread.ports.store import UnitOfWork

ITEMS_AT_ONCE = 200
CHARS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a session: under which id it is here (none if it was left out), and how many turns were added."""

    outcome: Outcome
    session_id: str | None
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A session on its way in, and where those before it in the file went; None if they were left out."""

    line: SessionLine
    owner: str
    ids: Mapping[str, str | None]


async def take_in(
    store: Store, now: Callable[[], float], arrival: Arrival, items: Iterable[Item], *, dry_run: bool
) -> Imported:
    """Import what is new, some turns at a time: if it is cut short, the same import goes on with it."""
    found = await store.read(lambda uow: find(uow, arrival.line, arrival.owner, arrival.ids))
    session_id = found.session_id
    if found.outcome is Outcome.FORGOTTEN:
        # What is left of it, without its words, is still what its children grew out of.
        there = await store.read(lambda uow: uow.sessions.get(session_id)) is not None
        return Imported(found.outcome, session_id if there else None)
    if found.outcome.why:
        return Imported(found.outcome, None)
    is_new = found.outcome is Outcome.NEW
    batches = _batches(news(found, items))
    try:
        some = next(batches, None)
    except Different:
        return Imported(Outcome.DIFFERENT, None)
    if some is None and not is_new:
        return Imported(Outcome.SAME, session_id)
    if not is_new and await store.read(lambda uow: is_busy(uow, session_id)):
        return Imported(Outcome.BUSY, session_id)
    opening, turns = is_new, 0
    while some is not None or opening:
        following = next(batches, None)
        if not dry_run:
            write = _write(arrival, session_id, some or (), now, opening=opening, last=following is None)
            await store.write(write)
        turns += sum(isinstance(item, TurnLine) for item in some or ())
        some, opening = following, False
    return Imported(Outcome.NEW if is_new else Outcome.GROWN, session_id, turns)


def _write(
    arrival: Arrival, session_id: str, some: Sequence[Item], now: Callable[[], float], *, opening: bool, last: bool
) -> Callable[[UnitOfWork], None]:
    """One unit of work: most sessions need no second one."""

    def write(uow: UnitOfWork) -> None:
        if opening:
            begin(uow, arrival.line, session_id, arrival.owner, arrival.ids, now())
        add(uow, session_id, some)
        if last:
            finish(uow, arrival.line, session_id, now())

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
