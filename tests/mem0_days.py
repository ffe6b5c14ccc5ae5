"""A day of Mem0's on which much goes wrong, by a seed: what was said, what is there afterwards, and what went wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everthread.adapters.memory.mem0 import Mem0
from everthread.domain.boundary import Branch, New, Resume
from everthread.memory.journal import Limits
from everthread.testing.fault_proxy import FaultProxy
from everthread.testing.recording import Effect
from tests.house import CLI, House
from tests.tidy import tidy

LIMITS = Limits(attempt_s_max=1.5, backoff_s=0.02, backoff_s_max=0.2, breaker_s=0.1)
RATE = 0.5
HEALED_S_MAX = 90.0


@dataclass
class Day:
    said: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    there: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    closes: int = 0
    early: list[str] = field(default_factory=list[str])
    """Turns that were not there when their session was closed."""
    notes: list[str] = field(default_factory=list[str])
    requests: int = 0
    spoiled: Counter[str] = field(default_factory=Counter[str])


async def lived(folder: Path, proxy: FaultProxy, settings: dict[str, Any], held: Callable[[], Sequence[Effect]]) -> Day:
    """Seven turns in four sessions, one of them a branch and one resumed twice, while the proxy spoils what it can."""
    day = Day()

    def turns() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in held():
            if one.kind == "turn":
                found.setdefault(one.session_id, []).append(one.text.partition("\n")[0])
        return found

    class Watched(Mem0):
        async def on_session_end(self, messages: Any, **more: Any) -> None:
            await super().on_session_end(messages, **more)
            own = [turn.user_text for turn in more["view"].turns if not turn.inherited]
            missing = Counter(own) - Counter(turns().get(more["ref"].session_id, []))
            day.early += missing.elements()
            day.closes += 1

    async with House(folder, tidy(Watched), limits=LIMITS, settings={"mem0": settings}) as house:

        async def say(word: str) -> str:
            session = (await house.turn(CLI, word)).ref.session_id
            day.said.setdefault(session, []).append(word)
            return session

        first = await say("apple")
        await _drained(house)
        proxy.spoil(RATE)
        await say("birch")
        await house.note("keeps bees")
        await house.cross(CLI, New())
        await say("cedar")
        await house.cross(CLI, Branch())
        await say("damson")
        # So long that many a request is given up; then those that hang are cut off, and it goes on.
        await asyncio.sleep(2)
        proxy.heal()
        await asyncio.sleep(0.2)
        proxy.spoil(RATE)
        await house.cross(CLI, Resume(first))
        await say("elder")
        await house.cross(CLI, New())
        await say("fir")
        await house.cross(CLI, Resume(first))
        await say("gorse")
        await house.cross(CLI, New())
        await asyncio.sleep(2)
        proxy.heal()
        await _drained(house)
    day.there = turns()
    day.notes = [one.text for one in held() if one.kind == "note"]
    day.requests = proxy.passed + sum(proxy.spoiled.values())
    day.spoiled = Counter({str(kind): count for kind, count in proxy.spoiled.items()})
    return day


async def _drained(house: House) -> None:
    """A process that starts, and a day of faults, take longer than a house is patient."""
    deadline = time.monotonic() + HEALED_S_MAX
    while any(status.lanes.waiting_entries for status in await house.memory.journal.status()):
        assert time.monotonic() < deadline, await house.memory.journal.status()
        await asyncio.sleep(0.05)
