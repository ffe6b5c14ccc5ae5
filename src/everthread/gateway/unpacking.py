"""Fetching what came with messages that are stored: beside everything else, one after another at each key.

What is to be fetched stands in the inbox: whoever dies in between leaves it to the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from everthread.domain.errors import StoreError
from everthread.domain.media import Media
from everthread.domain.model import InboxRow, Reply, ReplyState, SessionKey
from everthread.gateway.delivery import Delivery
from everthread.gateway.luggage import Luggage, Unpacked
from everthread.gateway.places import at
from everthread.gateway.routing import unpacked_words
from everthread.ports import Clock, Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

STORE_PAUSE_S = 2.0


class Unpacking:
    def __init__(self, store: Store, clock: Clock, luggage: Luggage, delivery: Delivery) -> None:
        self._store = store
        self._clock = clock
        self._luggage = luggage
        self._delivery = delivery
        self._doing: dict[int, asyncio.Future[None]] = {}
        self._last: dict[SessionKey, asyncio.Future[None]] = {}
        """Of each key, what is done last."""

    def holds(self, inbox_id: int) -> bool:
        """Whether that message is being unpacked."""
        return inbox_id in self._doing

    def begin(self, row: InboxRow, done: Callable[[], None] = lambda: None) -> None:
        """Have a message unpacked, behind those of its key; then `done` is called. Comes back at once."""
        if not row.inbound.is_packed or row.id in self._doing:
            return
        key = row.inbound.key
        task = asyncio.ensure_future(self._unpack(row, self._last.get(key)))
        self._doing[row.id] = self._last[key] = task

        def ended(task: asyncio.Future[None]) -> None:
            del self._doing[row.id]
            if self._last.get(key) is task:
                del self._last[key]
            if not task.cancelled():
                done()

        task.add_done_callback(ended)

    async def wait(self, row: InboxRow) -> None:
        """Until that message is unpacked, or nobody unpacks it any more."""
        self.begin(row)
        if (task := self._doing.get(row.id)) is not None:
            await asyncio.wait({task})

    async def finish(self) -> None:
        """Fetch nothing more. What was not fetched is left to another process."""
        tasks = list(self._doing.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _unpack(self, row: InboxRow, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        inbound = row.inbound
        unpacked = await self._luggage.unpacked(inbound.key.platform, inbound.media)
        shown = tuple(replace(media, path=self._luggage.place_of(media)) for media in unpacked.media)
        text = unpacked_words(inbound.text, inbound.media, shown)
        while True:
            try:
                await self._store_unpacked(row, text, unpacked)
                return
            except StoreError as error:
                log.warning("what came with a message has to wait: %s", error, extra=at(inbound.key))
            except Exception:
                # A mistake of ours; the message is not to be lost by it.
                log.exception("what came with a message has to wait", extra=at(inbound.key))
            await self._clock.sleep(STORE_PAUSE_S)

    async def _store_unpacked(self, row: InboxRow, text: str, unpacked: Unpacked) -> None:
        inbound, name = row.inbound, f"unheard-{row.id}"
        # Of what is in it nothing is kept a second time.
        kept = tuple(Media(media.kind, path=media.path) for media in unpacked.media if media.path)
        notice = Reply(name, inbound.key, "", inbound.owner, unpacked.notice, ReplyState.READY, self._clock.now())

        def store(uow: UnitOfWork) -> tuple[bool, Reply | None]:
            waits = uow.inbox.unpack(row.id, text, kept)
            return waits, uow.inbox.put_reply(notice) if waits and unpacked.notice else None

        waits, told = await self._store.write(store)
        if told is not None:
            self._delivery.put(told)
        if not waits:
            # It was set aside, or forgotten, meanwhile.
            for media in unpacked.media:
                self._luggage.remove(media)
