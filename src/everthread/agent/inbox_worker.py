"""The inbox worker of every front end.

Keep messages that no model can answer, wait until a session is free, and find the turns that dead processes left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from everthread.domain.model import Fate, Message, Role, SessionKey, SessionRef, Slot

if TYPE_CHECKING:
    from everthread.lifecycle import CommittedTurn, Lifecycle, TurnClaim
    from everthread.ports.clock import Clock
    from everthread.store.unit_of_work import Store

POLL_S = 0.25


class InboxWorker(Struct, frozen=True):
    """The steps around a turn that the terminal and the gateway share. It holds no state that outlives the process."""

    store: Store
    lifecycle: Lifecycle
    clock: Clock
    _freed: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """Set when this process ends a turn in that session."""

    async def keep_unanswered(
        self, key: SessionKey, reply: str | None = None, *, turn_id: str = ""
    ) -> tuple[TurnClaim, CommittedTurn] | None:
        """Commit the key's next message, or the cut-off turn `turn_id`, without an answer.

        Return `None` if there is nothing to commit. Raise `Busy` while another turn runs in the session.
        """
        claim = await (self.lifecycle.resume_turn(turn_id) if turn_id else self.lifecycle.begin_turn(key))
        if claim is None:
            return None
        messages = [Message(Role.USER, text) for text in claim.texts]
        return claim, await self.lifecycle.commit_turn(claim, messages, reply, interrupted=True)

    async def wait_until_free(self, key: SessionKey, bound_s: float, is_cancelled: Callable[[], bool]) -> None:
        """Wait until no turn runs in the key's session, at most `bound_s`.

        A turn of another process is polled for by the store's change counter, which costs less than a query.
        """
        ref = await self.lifecycle.current(key)
        if ref is None:
            return
        freed, seen = self._freed.setdefault(ref.session_id, asyncio.Event()), -1
        loop = asyncio.get_running_loop()
        until = loop.time() + bound_s
        while not (freed.is_set() or is_cancelled()) and (left_s := until - loop.time()) > 0:
            if (now := await self.store.changed()) != seen:
                seen = now
                if await self.store.read_inline(lambda uow: uow.slots.live(ref.session_id)) is None:
                    break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_S, left_s)):
                    await freed.wait()
        # Wake the other keys that wait for the same session.
        if self._freed.get(ref.session_id) is freed:
            self.release(ref.session_id)

    def release(self, session_id: str) -> None:
        """Wake every key that waits for this session."""
        if (freed := self._freed.pop(session_id, None)) is not None:
            freed.set()

    async def find_cut_off(
        self, is_mine: Callable[[SessionRef], bool], is_settled_here: Callable[[SessionRef], bool]
    ) -> list[Slot]:
        """Settle the turns that dead processes left, if one of them satisfies `is_settled_here`.

        Return those that satisfy `is_mine` and can be resumed.
        """
        now = self.clock.now()
        orphans = await self.store.read_inline(lambda uow: uow.slots.orphans(now))
        if not any(is_settled_here(slot.ref) for slot in orphans):
            return []
        mine = {slot.turn_id: slot for slot in orphans if is_mine(slot.ref)}
        return [mine[turn_id] for turn_id in await self.lifecycle.recover() if turn_id in mine]

    async def find_blocking(self, key: SessionKey) -> Slot | None:
        """Find the cut-off turn that blocks the key's session."""
        ref, now = await self.lifecycle.current(key), self.clock.now()
        if ref is None:
            return None
        orphans = await self.store.read_inline(lambda uow: uow.slots.orphans(now))
        blocking = (slot for slot in orphans if slot.ref.session_id == ref.session_id and slot.fate is Fate.LIVE)
        return next(blocking, None)
