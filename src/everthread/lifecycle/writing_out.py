"""Sessions written out as the lines of an export, a few turns at a time, whoever takes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from everthread.domain.exchange import VERSION, AnyLine, EndLine, Header, Item, TurnLine
from everthread.domain.model import Session
from everthread.lifecycle import export
from everthread.lifecycle.export import Head
from everthread.ports import Store

_TURNS_AT_ONCE = 200


async def write_out(
    store: Store, sessions: Sequence[Session], now: float, program: str, *, with_notes: bool = False
) -> AsyncGenerator[AnyLine, None]:
    """Every line of a file with these sessions, which `export.chosen` has put into order."""
    count = turns = 0
    yield Header(VERSION, now, program)
    included: set[str] = set()
    for session in sessions:
        before = frozenset(included)
        head = await store.read(lambda uow, s=session.id, b=before: export.head(uow, s, b))
        if head is None:  # forgotten meanwhile
            continue
        yield head.line
        included.add(session.id)
        count += 1
        after = 0
        while True:
            some, last, after = await _some(store, session.id, head, after)
            for item in some:
                yield item
            turns += sum(isinstance(item, TurnLine) for item in some)
            if last:
                break
    owners = sorted({session.owner for session in sessions if session.id in included})
    notes = await store.read(lambda uow: export.notes(uow, owners)) if with_notes else []
    for note in notes:
        yield note
    yield EndLine(count, turns, len(notes))


async def _some(store: Store, session_id: str, head: Head, after: int) -> tuple[list[Item], bool, int]:
    """The lines of the next turns, whether they are the last, and behind which number to go on."""
    some = await store.read(
        lambda uow: uow.turns.own(session_id, after=after, up_to=head.last_turn, limit=_TURNS_AT_ONCE)
    )
    last = len(some) < _TURNS_AT_ONCE
    return list(export.items(head, some, after, last=last)), last, some[-1].number if some else after
