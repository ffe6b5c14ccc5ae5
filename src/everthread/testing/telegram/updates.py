"""Queue of updates for the bot. An update leaves it when a higher offset confirms it or a webhook accepts it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Raw

from everthread.testing.telegram.objects import CallbackQuery, ChatMemberUpdated, Message, Update
from everthread.testing.telegram.wait import ChangeSignal

_FIRST = 1000
_KEPT = 10_000
"""Number of updates that can be redelivered."""


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
        self._changes.tell()
        return update.update_id

    def allow(self, kinds: Sequence[str] | None) -> None:
        """Set the allowed kinds. None keeps the current ones."""
        if kinds is not None:
            self.allowed = frozenset(kinds)

    def repeat(self, update_id: int) -> bool:
        """Redeliver an update, even a confirmed one. Return False if it is unknown."""
        update = self._known.get(update_id)
        if update is not None:
            self._again.append(update)
            self._changes.tell()
        return update is not None

    @property
    def repeated(self) -> tuple[int, ...]:
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

    def given(self, batch: Sequence[Update]) -> None:
        """Record that a batch was sent, which ends its redeliveries."""
        if self._again:
            self._again = [one for one in self._again if one not in batch]

    def took(self, update: Update) -> None:
        """Record that a webhook accepted the update."""
        self.given([update])
        self.pending.pop(update.update_id, None)

    def clear(self) -> None:
        self.pending.clear()
        self._again.clear()
