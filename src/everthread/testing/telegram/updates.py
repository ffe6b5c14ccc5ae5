"""Queue of updates for the bot. An update leaves it when a higher offset confirms it or a webhook accepts it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec import Raw

from everthread.testing.telegram.objects import CallbackQuery, ChatMemberUpdated, Message, Update

_FIRST = 1000
_KEPT = 10_000
"""Number of updates that can be redelivered."""
WAIT_S_MAX = 60.0


class ChangeSignal:
    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters so that they check their condition again."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, condition: Callable[[], object], timeout_s: float) -> None:
        """Wait until the condition holds or the timeout expires."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(timeout_s, WAIT_S_MAX)):
                while not condition():
                    await self._next.wait()


class UpdateBatch(list[Update]):
    """Updates about to be sent to the bot."""


class Updates:
    def __init__(self, changes: ChangeSignal) -> None:
        self.pending: dict[int, Update] = {}
        self.allowed: frozenset[str] = frozenset()
        """Allowed kinds; empty allows all."""
        self._changes = changes
        self._next = _FIRST
        self._known: dict[int, Update] = {}
        self._again: list[Update] = []

    def post(
        self,
        *,
        message: Message | Raw | None = None,
        edited_message: Message | None = None,
        callback_query: CallbackQuery | None = None,
        my_chat_member: ChatMemberUpdated | None = None,
    ) -> int | None:
        """Queue an update. Return its id, or None if the bot does not allow this kind."""
        update = Update(self._next, message, edited_message, callback_query, my_chat_member)
        if self.allowed and update.kind not in self.allowed:
            return None
        self._next += 1
        self.pending[update.update_id] = self._known[update.update_id] = update
        if len(self._known) > _KEPT:
            del self._known[next(iter(self._known))]
        self._changes.notify()
        return update.update_id

    def allow(self, kinds: Sequence[str] | None) -> None:
        """Set the allowed kinds. None keeps the current ones."""
        if kinds is not None:
            self.allowed = frozenset(kinds)

    def redeliver(self, update_id: int) -> bool:
        """Redeliver an update, even a confirmed one. Return False if it is unknown."""
        update = self._known.get(update_id)
        if update is not None:
            self._again.append(update)
            self._changes.notify()
        return update is not None

    @property
    def redelivered(self) -> tuple[int, ...]:
        """Updates waiting for redelivery."""
        return tuple(update.update_id for update in self._again)

    def confirm(self, offset: int) -> None:
        """Confirm the updates before the offset. A negative offset keeps only that many of the newest."""
        if offset < 0:
            done = list(self.pending)[:offset]
        else:
            done: list[int] = []
            for number in self.pending:
                if number >= offset:
                    break
                done.append(number)
        for number in done:
            del self.pending[number]

    def batch(self, limit: int) -> UpdateBatch:
        return UpdateBatch([*self._again, *islice(self.pending.values(), limit)][:limit])

    def mark_sent(self, batch: Sequence[Update]) -> None:
        """Record that a batch was sent, which ends its redeliveries."""
        if self._again:
            self._again = [one for one in self._again if one not in batch]

    def mark_accepted(self, update: Update) -> None:
        """Record that a webhook accepted the update."""
        self.mark_sent([update])
        self.pending.pop(update.update_id, None)

    def clear(self) -> None:
        self.pending.clear()
        self._again.clear()
