"""Process with a wall clock that is wrong by some seconds.

The test passes the orders as JSON in the only argument. With `down`, the worker answers a message while its memory
provider is down, offers a pairing code, and waits to be killed. Otherwise it serves the store until the conversation
has expired and the provider has received it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.agent_worker import KEY, OWNER

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.errors import Unavailable
from everthread.domain.model import Inbound, Message, Role
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle.pairing import Pairings
from everthread.ports.memory import MemoryProvider

IDLE_S = 1.0


class WrongClock:
    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def now(self) -> float:
        return time.time() + self._ahead_s

    def elapsed(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Diary(MemoryProvider):
    def __init__(self, *, down: bool) -> None:
        super().__init__()
        self.name = "diary"
        self.received = asyncio.Event()
        self._down = down

    async def sync_turn(self, user: str, assistant: str, **_: Any) -> None:
        if self._down:
            raise Unavailable("diary", "down", retry_after_s=60.0)
        self.received.set()


async def work(home: str, ahead_s: float, down: bool) -> None:
    clock, diary = WrongClock(ahead_s), Diary(down=down)
    policies = ResetPolicies(ResetPolicy(idle_s=IDLE_S if not down else 3600.0))
    async with Runtime(Settings(Path(home)), providers=(diary,), policies=policies, clock=clock) as runtime:
        await runtime.start()
        pairings = Pairings(runtime.store, clock)
        if down:
            await runtime.lifecycle.accept(Inbound(KEY, OWNER, "hello"))
            claim = await runtime.lifecycle.begin_turn(KEY)
            assert claim is not None
            await runtime.lifecycle.commit_turn(claim, (Message(Role.USER, "hello"),), "hi")
            assert await pairings.offer("telegram", "7", "Bea", "CODE2345")
            while not any([row.last_error for row in await runtime.store.read(lambda uow: uow.cursors.providers())]):
                await clock.sleep(0.01)
        else:
            await diary.received.wait()
            while await runtime.lifecycle.current(KEY) is not None:
                await clock.sleep(0.01)
        may_offer = await pairings.may_offer("telegram", "7")
        sys.stdout.write(json.dumps({"may_offer": may_offer}) + "\n")
        sys.stdout.flush()
        if down:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work(**json.loads(sys.argv[1])))
