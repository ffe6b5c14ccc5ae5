"""The updates that wait for the bot: one leaves only when a higher offset confirms it, or a webhook took it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Raw

from everthread.testing.telegram.objects import CallbackQuery, ChatMemberUpdated, Message, Update
from everthread.testing.telegram.wait import Changes

_FIRST = 1000
_KEPT = 10_000
"""How many updates can be asked for again."""


class Batch(list[Update]):
    """Updates on their way to the bot."""


class Updates:
    def __init__(self, changes: Changes) -> None:
        self.pending: dict[int, Update] = {}
        self.allowed: frozenset[str] = frozenset()
        """Kinds; none means all."""
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
        """The update's number; None if the bot did not ask for this kind."""
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
        """Which the bot wants from now on; without a word about it, the same as before."""
        if kinds is not None:
            self.allowed = frozenset(kinds)

    def repeat(self, update_id: int) -> bool:
        """It will come once more, also if it was confirmed; whether there is such an update."""
        update = self._known.get(update_id)
        if update is not None:
            self._again.append(update)
            self._changes.tell()
        return update is not None

    @property
    def repeated(self) -> tuple[int, ...]:
        """What is still to come once more."""
        return tuple(update.update_id for update in self._again)

    def confirm(self, offset: int) -> None:
        """All before it are done with; below zero, all but so many of the last."""
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

    def batch(self, limit: int) -> Batch:
        return Batch([*self._again, *islice(self.pending.values(), limit)][:limit])

    def given(self, batch: Sequence[Update]) -> None:
        """These went out: what is repeated is repeated once."""
        if self._again:
            self._again = [one for one in self._again if one not in batch]

    def took(self, update: Update) -> None:
        """A webhook has it."""
        self.given([update])
        self.pending.pop(update.update_id, None)

    def clear(self) -> None:
        self.pending.clear()
        self._again.clear()
