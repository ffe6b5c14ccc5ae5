"""Measure Telegram: `python -m benchmarks.telegram [--json] [--only NAME ...]`.

Three processes beside this one: the gateway, a model that answers at once, and the emulated Bot API. Only the gateway's
own processor time counts. Answers are not shown while they are written. docs/reference/benchmarks.md says what each
figure means.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.gateway import BATCH, BATCHES, Measured, Server, serving
from benchmarks.gateway_process import TOKEN
from benchmarks.measuring import Figure, run
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.users import People

CHATS = 50
FIRST_PERSON = 1000
IMPORTS = 7
ADAPTER = "everthread.adapters.platforms.telegram"
GATEWAY = "everthread.bootstrap.runtime, everthread.gateway.server, everthread.web.server, aiohttp"
"""What a gateway has imported, whichever its platforms are."""


class TelegramCrowd:
    def __init__(self, people: People) -> None:
        self._people = people
        self._counted = self._answers = 0

    async def say_all(self, said: Sequence[tuple[str, str]]) -> None:
        await self._people.say_all([wire.Said(FIRST_PERSON + int(chat), text) for chat, text in said])

    async def answered(self, count: int) -> None:
        await self._people.until(lambda: self._count() >= count, "answers", 120)

    def _count(self) -> int:
        seen = self._people.seen
        self._answers += sum(one.what == "sent" for one in seen[self._counted :])
        self._counted = len(seen)
        return self._answers


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Measured]:
    with Server("everthread.testing.telegram", "--token", TOKEN, "--no-limits") as there:
        async with People(there.url) as people:
            async with serving(folder, TelegramCrowd(people), there.url, kind="telegram") as measured:
                yield measured


async def messages(folder: Path) -> dict[str, Figure]:
    """What a message and its answer cost."""
    samples: list[float] = []
    async with gateway(folder) as measured:
        ready = await measured.line()
        await measured.grow(CHATS)
        await measured.say(BATCH)
        for _ in range(BATCHES):
            begun = await measured.report()
            await measured.say(BATCH)
            samples.append(((await measured.report())["cpu_s"] - begun["cpu_s"]) * 1000 / BATCH)
    return {"cpu_ms_per_message": Figure.of(samples), "ready_cpu_ms": Figure.exact(ready["cpu_s"] * 1000)}


async def throughput(folder: Path) -> dict[str, Figure]:
    """How many updates a second one core answers; everybody else has the other cores.

    By the clock, which others on the same core slow down, and by the processor time that it took.
    """
    samples: list[float] = []
    by_cpu: list[float] = []
    async with gateway(folder) as measured:
        await measured.line()
        os.sched_setaffinity(measured.process.pid, sorted(os.sched_getaffinity(0))[:1])
        await measured.grow(CHATS)
        await measured.say(BATCH)
        for _ in range(BATCHES):
            begun, report = time.monotonic(), await measured.report()
            await measured.say(BATCH)
            samples.append(BATCH / (time.monotonic() - begun))
            by_cpu.append(BATCH / ((await measured.report())["cpu_s"] - report["cpu_s"]))
    return {"updates_per_s": Figure.of(samples), "updates_per_cpu_s": Figure.of(by_cpu)}


async def importing(folder: Path) -> dict[str, Figure]:
    """What the adapter takes to be imported: by itself, and where a gateway is already."""
    return {
        "import_cpu_ms": await _import_cpu_ms("time"),
        "import_cpu_ms_in_a_gateway": await _import_cpu_ms(GATEWAY),
    }


async def _import_cpu_ms(before: str) -> Figure:
    program = (
        f"import {before}, time; begun = time.process_time(); import {ADAPTER}; print(time.process_time() - begun)"
    )
    samples: list[float] = []
    for _ in range(IMPORTS):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        printed, _ = await process.communicate()
        samples.append(float(printed) * 1000)
    return Figure.of(samples)


STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "messages": messages,
    "throughput": throughput,
    "import": importing,
}

TARGETS: dict[str, float] = {"cpu_ms_per_message": 9.0, "updates_per_s": 100.0}

if __name__ == "__main__":
    run("benchmarks.telegram", __doc__, STEPS, TARGETS)
