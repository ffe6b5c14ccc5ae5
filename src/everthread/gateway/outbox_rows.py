"""The states of a reply in the outbox: pure transitions of its row, and the writer that stores them with retries."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from everthread.domain.errors import StoreError
from everthread.domain.model import Reply, ReplyState
from everthread.domain.text_format import quote_start
from everthread.log_context import Private, log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Finder
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.gateway")

RETRY_S = 2.0

T = TypeVar("T")


def with_part_sent(reply: Reply, message_id: str, is_last: bool) -> Reply:
    """Return the reply after one more part was sent."""
    state = ReplyState.SENT if is_last else ReplyState.READY
    return replace(reply, state=state, parts=reply.parts + 1, platform_message_id=message_id)


def reply_fields(reply: Reply) -> dict[str, str]:
    """Return the log fields of a reply."""
    return log_fields(reply.key, reply.session_id, reply.turn_id, reply.owner)


def chat_of(reply: Reply) -> str:
    return f"{reply.key.platform} chat {reply.key.chat}"


def is_edit(reply: Reply) -> bool:
    """Return true if the next part is a new text for a message that is already sent."""
    return reply.parts == 0 and bool(reply.platform_message_id)


def may_have_begun(reply: Reply) -> bool:
    """Return true if a beginning may have been sent under an unknown id."""
    return reply.parts == 0 and reply.platform_message_id == ""


def read_ready(uow: UnitOfWork, turn_id: str) -> Reply | None:
    """Read a reply that is still to be sent: it may have been forgotten since it was queued."""
    reply = uow.outbox.reply(turn_id)
    return reply if reply is not None and reply.state is ReplyState.READY else None


def claim(uow: UnitOfWork, turn_id: str, finder: Finder | None) -> Reply | None:
    """Mark a reply as being sent, with the newest known message of the chat: a check looks for it after that one."""
    reply = read_ready(uow, turn_id)
    if reply is None:
        return None
    newest = finder.newest(Address.of(reply.key)) if finder is not None else ""
    sent_after = reply.sent_after if may_have_begun(reply) else newest
    return uow.outbox.put_reply(replace(reply, state=ReplyState.SENDING, sent_after=sent_after))


def narrow_search(uow: UnitOfWork, reply: Reply) -> None:
    """Note that the reply, if it was sent, comes after `reply.sent_after`."""
    known = uow.outbox.reply(reply.turn_id)
    if known is not None and (known.state is ReplyState.SENDING or may_have_begun(known)):
        uow.outbox.put_reply(replace(known, sent_after=reply.sent_after))


def save(uow: UnitOfWork, reply: Reply) -> None:
    known = uow.outbox.reply(reply.turn_id)
    if known is None:
        return
    if known.text != reply.text:
        # Forgotten while it was being sent: keep its text out of the store, and send no further part.
        state = ReplyState.WITHHELD if reply.state is ReplyState.READY else reply.state
        reply = replace(reply, text=known.text, state=state)
    uow.outbox.put_reply(reply)


class ReplyWriter:
    """Stores the state of replies. Only the sender knows it, so it retries until the store takes it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def save(self, reply: Reply) -> None:
        await self._write(lambda uow: save(uow, reply))

    async def try_save(self, reply: Reply) -> None:
        """Save once, without a retry."""
        try:
            await self._store.write(lambda uow: save(uow, reply))
        except StoreError as error:
            log.warning("could not record reply state; the next start checks it: %s", error, extra=reply_fields(reply))

    async def give_up(self, reply: Reply, state: ReplyState, why: str) -> None:
        """Save a final state and record an incident."""

        def give_up(uow: UnitOfWork) -> None:
            save(uow, replace(reply, state=state))
            outcome = "may not have reached" if state is ReplyState.AMBIGUOUS else "did not reach"
            text = f"a reply {outcome} {chat_of(reply)}: {quote_start(why, 200)}"
            uow.incidents.add(Incident(self._clock.now(), "delivery", reply.session_id or None, text))

        await self._write(give_up)
        log.warning("%s: a reply is %s: %s", reply.key.platform, state.value, Private(why), extra=reply_fields(reply))

    async def report(self, reply: Reply, text: str) -> None:
        """Record an incident."""
        incident = Incident(self._clock.now(), "delivery", reply.session_id or None, text)
        await self._write(lambda uow: uow.incidents.add(incident))
        log.warning("%s: problem with a reply: %s", reply.key.platform, Private(text), extra=reply_fields(reply))

    async def is_unchanged(self, reply: Reply) -> bool:
        """Return false if the reply was forgotten since it was read."""
        known = await self._retry(lambda: self._store.read_inline(lambda uow: uow.outbox.reply(reply.turn_id)))
        return known is not None and known.text == reply.text

    async def _write(self, work: Callable[[UnitOfWork], None]) -> None:
        await self._retry(lambda: self._store.write(work))

    async def _retry(self, act: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await act()
            except StoreError as error:
                log.warning("could not record reply state; retrying: %s", error)
                await self._clock.sleep(RETRY_S)
