"""Measure how long the event loop was blocked."""

from __future__ import annotations

import asyncio
import logging

from everthread.ports.clock import Clock

log = logging.getLogger("everthread.gateway")

INTERVAL_S = 0.1
LOGGED_S = 0.5


class LoopLagMonitor:
    """Sleeps for an interval and records how late it wakes up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.longest_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + INTERVAL_S
            await self._clock.sleep(INTERVAL_S)
            late_s = loop.time() - due
            self.longest_s = max(self.longest_s, late_s)
            if late_s > LOGGED_S:
                log.warning("the event loop was blocked for %.1f s", late_s)
