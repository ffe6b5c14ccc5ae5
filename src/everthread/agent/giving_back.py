"""Giving back turns that failed while the store could not be written: later, and for as long as it takes."""

from __future__ import annotations

import asyncio
import logging

from everthread.domain.errors import Fenced, StoreError
from everthread.lifecycle import Lifecycle, Ticket
from everthread.ports import Clock

log = logging.getLogger("everthread.agent")

PAUSE_S = 1.0
PAUSE_S_MAX = 60.0


class GivingBack:
    """As long as this process lives, nobody else may take its turns: one that it never gave back would never end."""

    def __init__(self, lifecycle: Lifecycle, clock: Clock) -> None:
        self._lifecycle = lifecycle
        self._clock = clock
        self._going: set[asyncio.Task[None]] = set()

    def later(self, ticket: Ticket) -> None:
        """Nothing is waited for."""
        task = asyncio.ensure_future(self._until_given_back(ticket))
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _until_given_back(self, ticket: Ticket) -> None:
        pause_s = PAUSE_S
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self._lifecycle.abandon_turn(ticket)
            except Fenced:
                return
            except StoreError as error:
                log.warning("turn %s can't be given back yet: %s", ticket.turn_id, error)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                return

    async def aclose(self) -> None:
        """Once this process is gone, others take up what is left."""
        for task in self._going:
            task.cancel()
        if self._going:
            await asyncio.wait(self._going)
