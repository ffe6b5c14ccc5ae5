"""The rows of the outbox as what is sent goes through its states. Pure but for the row that is read and written.

Writing down what became of replies.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from everthread.domain.errors import StoreError
from everthread.domain.model import Reply, ReplyState
from everthread.domain.text_format import excerpt
from everthread.gateway import outbox_rows as outgoing
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Finder
from everthread.store.leases import Incident
from everthread.store.unit_of_work import Store, UnitOfWork


def sent(reply: Reply, message_id: str, last: bool) -> Reply:
    """After one more part of it went out."""
    state = ReplyState.SENT if last else ReplyState.READY
    return replace(reply, state=state, parts=reply.parts + 1, platform_message_id=message_id)


def is_edit(reply: Reply) -> bool:
    """Whether what comes next of it is another text for a message that is out."""
    return reply.parts == 0 and bool(reply.platform_message_id)


def may_have_begun(reply: Reply) -> bool:
    """Whether a beginning of it may be out, under an id that nobody was told."""
    return reply.parts == 0 and reply.platform_message_id == ""


def ready(uow: UnitOfWork, turn_id: str) -> Reply | None:
    """The reply as it is now: it may have been forgotten since it was queued."""
    reply = uow.outbox.reply(turn_id)
    return reply if reply is not None and reply.state is ReplyState.READY else None


def claimed(uow: UnitOfWork, turn_id: str, finder: Finder | None) -> Reply | None:
    """Marked as handed over, and behind what: a beginning of it is looked for from where it was."""
    reply = ready(uow, turn_id)
    if reply is None:
        return None
    newest = finder.newest(Address.of(reply.key)) if finder is not None else ""
    sent_after = reply.sent_after if may_have_begun(reply) else newest
    return uow.outbox.put_reply(replace(reply, state=ReplyState.SENDING, sent_after=sent_after))


def looked(uow: UnitOfWork, turn_id: str, sent_after: str) -> None:
    """It is not before that, if it may be out."""
    reply = uow.outbox.reply(turn_id)
    if reply is not None and (reply.state is ReplyState.SENDING or may_have_begun(reply)):
        uow.outbox.put_reply(replace(reply, sent_after=sent_after))


def update(uow: UnitOfWork, reply: Reply) -> None:
    known = uow.outbox.reply(reply.turn_id)
    if known is None:
        return
    if known.text != reply.text:
        # Forgotten while it was being sent: its words don't come back, and no more of it goes out.
        state = ReplyState.WITHHELD if reply.state is ReplyState.READY else reply.state
        reply = replace(reply, text=known.text, state=state)
    uow.outbox.put_reply(reply)


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
            uow.leases.add_incident(Incident(self._clock.now(), "delivery", reply.session_id or None, text))

        await self._write(give_up)
        where = log_fields(reply.key, reply.session_id, reply.turn_id)
        log.warning("%s: a reply is %s: %s", reply.key.platform, state.value, why, extra=where)

    async def tell(self, reply: Reply, text: str) -> None:
        """An incident."""
        incident = Incident(self._clock.now(), "delivery", reply.session_id or None, text)
        await self._write(lambda uow: uow.leases.add_incident(incident))
        log.warning("%s", text, extra=log_fields(reply.key, reply.session_id, reply.turn_id))

    async def has_its_words(self, reply: Reply) -> bool:
        """Whether nobody has had it forgotten since it was read."""
        known = await self._insisting(lambda: self._store.read_inline(lambda uow: uow.outbox.reply(reply.turn_id)))
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
