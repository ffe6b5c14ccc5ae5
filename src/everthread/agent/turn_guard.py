"""The check that every effect of a running turn passes first.

An effect is anything that leaves the store: a model call, a tool call, a question for approval, a recall, text shown on
a platform. A boundary can be crossed in any process. A turn that it cancels begins no further effect; only the call in
flight may finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from everthread.domain.errors import TurnCancelled
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.ports.memory import RecallItem

T = TypeVar("T")


class TurnGuard(Struct, frozen=True):
    """Permits the effects of one turn until it is stopped in this process or cancelled by a boundary in another."""

    lifecycle: Lifecycle
    claim: TurnClaim
    stop: Callable[[str], None]
    """Stops the turn for a reason, as a boundary in this process does."""
    is_stopped: Callable[[], bool]
    record: Callable[[Sequence[RecallItem]], None] = lambda items: None
    """Records the memories that the turn is shown."""

    async def check(self) -> None:
        """Raise if the turn must not act. Call it right before an effect that does not begin with a transaction."""
        await self.permit(lambda: self.lifecycle.check_acting(self.claim))

    async def permit(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `begin`, a transaction that checks the turn's slot.

        Raises `CancelledError` if the turn is stopped or a boundary has cancelled it, and `Fenced` if another process
        has taken it over.
        """
        if self.is_stopped():
            raise asyncio.CancelledError
        try:
            return await begin()
        except TurnCancelled as error:
            self.stop(str(error))
            raise asyncio.CancelledError from error
