"""How long the event loop was held: while it is, nobody is served."""

from __future__ import annotations

import asyncio
import logging

from everthread.ports.clock import Clock

log = logging.getLogger("everthread.gateway")

EVERY_S = 0.1
WORTH_A_LINE_S = 0.5


class Stalls:
    """Looks at the clock now and then, and notes how late that was."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.longest_s = 0.0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await self._clock.sleep(EVERY_S)
            late_s = loop.time() - due
            self.longest_s = max(self.longest_s, late_s)
            if late_s > WORTH_A_LINE_S:
                log.warning("nobody was served for %.1f s: something held the loop", late_s)
