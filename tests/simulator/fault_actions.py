"""Actions of a schedule that inject faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.simulator import operations as asked
from tests.simulator.coverage import CLOCK_BACK, CLOCK_FORWARD, CRASH_AFTER, CRASH_BEFORE, SUSPENSION
from tests.simulator.environment import Faults, SimClock
from tests.simulator.event_loop import SimLoop
from tests.simulator.process import Server
from tests.simulator.scenario import FAULTS, HOOK_FAULTS

WRONG_CLOCKS = {"a year ahead": 365 * 86_400.0, "an hour ahead": 3_600.0, "an hour behind": -3_600.0, "in 1970": 0.0}
PROVIDERS = ("alpha", "beta")


class FaultActions:
    """Part of a simulation: one method for each action, named after it."""

    loop: SimLoop
    clock: SimClock
    faults: Faults
    time_was_bent: bool
    _servers: list[Server]
    _wrong_by: float
    """Seconds by which the clock is to be corrected."""

    def _server(self, dice: random.Random) -> Server:
        raise NotImplementedError

    def _start_server(self) -> Server:
        raise NotImplementedError

    async def _on(self, dice: random.Random, work: Callable[[Server], Awaitable[None]]) -> bool:
        raise NotImplementedError

    async def _inject_fault(self, action: str, dice: random.Random) -> None:
        await getattr(self, "_fail_provider" if action == "fault" else f"_inject_{action}")(dice)

    # Processes ------------------------------------------------------------------------------------------------------

    async def _inject_kill(self, dice: random.Random) -> None:
        self._server(dice).kill()
        self.faults.hit["kill"] += 1
        await self._restart(dice)

    async def _inject_kill_inside(self, dice: random.Random) -> None:
        victim = self._server(dice)
        victim.kill_after_statements = dice.randint(0, 60)
        while not victim.dead and self.loop.time() < 300.0:
            await asyncio.sleep(1.0)
        await self._restart(dice)

    async def _inject_kill_boundary(self, dice: random.Random) -> None:
        """Kill the next process that crosses a boundary, before or after its commit."""
        alive = [server for server in self._servers if not server.dead]
        self.faults.deaths.append(dice.choice((CRASH_BEFORE, CRASH_AFTER)))
        while not any(server.dead for server in alive) and self.loop.time() < 300.0:
            await asyncio.sleep(1.0)
        await self._restart(dice)

    async def _inject_stop(self, dice: random.Random) -> None:
        close_memory = dice.random() < 0.3

        async def stop(server: Server) -> None:
            operation = asked.Stop(server.name, close_memory)
            await server.does(operation, server.lifecycle.suspend(close_memory=close_memory))
            self.faults.hit["stop"] += 1
            server.kill()

        await self._on(dice, stop)
        await self._restart(dice)

    async def _restart(self, dice: random.Random) -> None:
        await asyncio.sleep(dice.choice((0.1, 2.0, 25.0)))
        if sum(not server.dead for server in self._servers) < 2:
            self._start_server()

    # Time -----------------------------------------------------------------------------------------------------------

    async def _inject_freeze(self, dice: random.Random) -> None:
        self.time_was_bent = True
        self.faults.hit["stopped and continued"] += 1
        self._server(dice).frozen_until = self.loop.time() + dice.choice((3.0, 20.0, 40.0))

    async def _inject_freeze_boundary(self, dice: random.Random) -> None:
        """Stop the next process that asks for a boundary, before its transaction."""
        self.time_was_bent = True
        self.faults.hit["stopped and continued"] += 1
        self.faults.freezes.append(dice.choice((20.0, 40.0)))

    async def _inject_jump(self, dice: random.Random) -> None:
        self.faults.hit["clock jump"] += 1
        self._set_clock(dice.choice((-30.0, -4000.0, -4000.0, 10.0, 60.0, 4000.0)))

    async def _inject_wrong_clock(self, dice: random.Random) -> None:
        """Set the clock wrong, and correct it later."""
        kind = dice.choice(tuple(WRONG_CLOCKS))
        # A machine without a clock battery boots in 1970.
        seconds = WRONG_CLOCKS[kind] or 1000.0 - self.clock.now()
        self.faults.hit[f"clock {kind}"] += 1
        self._set_clock(seconds)
        self._wrong_by += seconds
        await asyncio.sleep(dice.choice((0.5, 3.0, 12.0)))
        self._correct_clock(seconds)

    def _correct_clock(self, seconds: float) -> None:
        if self._wrong_by:
            self._wrong_by -= seconds
            self._set_clock(-seconds)

    async def _inject_suspend_machine(self, dice: random.Random) -> None:
        self.time_was_bent = True
        self.faults.hit["suspension"] += 1
        self.faults.coverage.clock_changed(SUSPENSION, self.loop.time())
        self.clock.suspend(dice.choice((10.0, 30.0, 400.0, 40_000.0)))

    def _set_clock(self, seconds: float) -> None:
        self.time_was_bent = True
        self.faults.coverage.clock_changed(CLOCK_FORWARD if seconds > 0 else CLOCK_BACK, self.loop.time())
        self.clock.set_by(seconds)

    # The store, providers and plugins -------------------------------------------------------------------------------

    async def _inject_busy(self, dice: random.Random) -> None:
        self.faults.busy += dice.randint(1, 4)

    async def _inject_full(self, dice: random.Random) -> None:
        self.faults.full += dice.randint(1, 6)

    async def _fail_provider(self, dice: random.Random) -> None:
        waiting = self.faults.provider.setdefault(dice.choice(PROVIDERS), [])
        waiting += dice.choices(FAULTS, k=dice.choice((1, 1, 2, 8)))

    async def _inject_hook_fault(self, dice: random.Random) -> None:
        self.faults.hooks += dice.choices(HOOK_FAULTS, k=dice.choice((1, 1, 2, 5)))
