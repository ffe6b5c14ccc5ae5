"""The check that every effect of a running turn passes first.

An effect is anything that leaves the store: a model call, a tool call, a question for approval, a recall, text shown on
a platform. A boundary may be crossed in any process, and a turn that it cancels begins no further effect: only the call
that is in flight may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from everthread.domain.errors import TurnCancelled
from everthread.lifecycle import Lifecycle, TurnClaim

T = TypeVar("T")


class TurnGuard(Struct, frozen=True):
    """Lets one turn act while it is neither stopped here nor cancelled by a boundary elsewhere."""

    lifecycle: Lifecycle
    claim: TurnClaim
    stop: Callable[[str], None]
    """Stops the turn for a reason, as a boundary in this process does."""
    is_stopped: Callable[[], bool]

    async def check(self) -> None:
        """Pass, or raise, right before an effect that begins with no transaction of its own."""
        await self.permit(lambda: self.lifecycle.check_acting(self.claim))

    async def permit(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `begin`, a transaction that checks the turn's slot.

        Raises `CancelledError` if the turn is stopped, or is to be stopped now, and `Fenced` if it was taken over.
        """
        if self.is_stopped():
            raise asyncio.CancelledError
        try:
            return await begin()
        except TurnCancelled as error:
            self.stop(str(error))
            raise asyncio.CancelledError from error
