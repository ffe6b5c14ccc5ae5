"""Process of the outage scenario: runs the commands that it reads as lines of JSON, until it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from everthread.domain.boundary import New, Resume
from everthread.memory.delivery_results import Limits
from tests.runtime import CLI, CoreFixture

LIMITS = Limits(backoff_s=0.02, backoff_s_max=0.2, breaker_s=0.2)
LATER_S = 3600.0
"""Clock offset between two processes, so that the leases of the previous one have expired."""


async def live(home: Path, provider: str, settings: dict[str, Any], life: int, attempt_s_max: float) -> None:
    module, _, name = provider.partition(":")
    memory = getattr(import_module(module), name)()
    limits = replace(LIMITS, attempt_s_max=attempt_s_max)
    core = CoreFixture(home, memory, limits=limits, settings={memory.name: settings})
    core.holder = f"life{life}-{os.getpid()}"
    core.clock.ahead_s = life * LATER_S
    async with core:
        say("here")
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, text = json.loads(line)
            say(await obey(core, what, text))


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def obey(core: CoreFixture, what: str, text: str) -> Any:
    match what:
        case "turn":
            return (await core.turn(CLI, text)).ref.session_id
        case "new" | "resume":
            crossing = await core.cross(CLI, New() if what == "new" else Resume(text))
            return crossing.ref.session_id if crossing.ref else None
        case "recall":
            recall = await core.memory.recall(text, ref=await core.at(CLI), deadline_s=5.0)
            return [(item.text, item.session_id, item.turn) for item in recall.items]
        case "waiting":
            return sum(status.lanes.waiting_entries for status in await core.memory.journal.status())
        case _:
            raise ValueError(what)


if __name__ == "__main__":
    home, provider, settings, life, attempt_s_max = sys.argv[1:]
    asyncio.run(live(Path(home), provider, json.loads(settings), int(life), float(attempt_s_max)))
