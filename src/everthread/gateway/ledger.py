"""Writing down what became of replies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from everthread.domain.errors import StoreError
from everthread.domain.model import Reply, ReplyState
from everthread.domain.wording import excerpt
from everthread.gateway import outgoing
from everthread.gateway.places import at
from everthread.ports import Clock, Store, UnitOfWork
from everthread.ports.store import Incident

log = logging.getLogger("everthread.gateway")

LATER_S = 2.0

T = TypeVar("T")


class Ledger:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def mark(self, reply: Reply) -> None:
        await self._write(lambda uow: outgoing.update(uow, reply))

    async def mark_or_leave(self, reply: Reply) -> None:
        with suppress(StoreError):
            await self._store.write(lambda uow: outgoing.update(uow, reply))

    async def give_up(self, reply: Reply, state: ReplyState, why: str) -> None:
        def give_up(uow: UnitOfWork) -> None:
            outgoing.update(uow, replace(reply, state=state))
            what = "may not have reached" if state is ReplyState.AMBIGUOUS else "did not reach"
            text = f"a reply {what} {reply.key.platform} chat {reply.key.chat}: {excerpt(why, 200)}"
            uow.lanes.add_incident(Incident(self._clock.now(), "delivery", reply.session_id or None, text))

        await self._write(give_up)
        where = at(reply.key, reply.session_id, reply.turn_id)
        log.warning("%s: a reply is %s: %s", reply.key.platform, state.value, why, extra=where)

    async def tell(self, reply: Reply, text: str) -> None:
        """An incident."""
        incident = Incident(self._clock.now(), "delivery", reply.session_id or None, text)
        await self._write(lambda uow: uow.lanes.add_incident(incident))
        log.warning("%s", text, extra=at(reply.key, reply.session_id, reply.turn_id))

    async def has_its_words(self, reply: Reply) -> bool:
        """Whether nobody has had it forgotten since it was read."""
        known = await self._insisting(lambda: self._store.peek(lambda uow: uow.inbox.reply(reply.turn_id)))
        return known is not None and known.text == reply.text

    async def _write(self, work: Callable[[UnitOfWork], None]) -> None:
        """What became of a part must be written down, however long that takes: nobody else knows."""
        await self._insisting(lambda: self._store.write(work))

    async def _insisting(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except StoreError as error:
                log.warning("what became of a reply is written down later: %s", error)
                await self._clock.sleep(LATER_S)
