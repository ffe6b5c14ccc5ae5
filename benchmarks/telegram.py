"""Measure Telegram: `python -m benchmarks.telegram [--json] [--only NAME ...]`.

Starts three processes: the gateway, a model stub that answers immediately, and the emulated Bot API. Only the gateway's
own CPU time counts. Live replies are off. docs/reference/benchmarks.md explains each figure.
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

from benchmarks.gateway import BATCH, BATCHES, ChildServer, MeasuredGateway, start_gateway
from benchmarks.gateway_process import TOKEN
from benchmarks.measurement import Figure, run
from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.users import TelegramUsers

CHATS = 50
FIRST_PERSON = 1000
IMPORTS = 7
ADAPTER = "everthread.adapters.platforms.telegram"
GATEWAY = "everthread.bootstrap.runtime, everthread.gateway.server, everthread.web.server, aiohttp"
"""Modules that every gateway has imported."""


class TelegramLoad:
    def __init__(self, people: TelegramUsers) -> None:
        self._people = people
        self._counted = self._answers = 0

    async def say_all(self, messages: Sequence[tuple[str, str]]) -> None:
        await self._people.say_all([wire.UserMessage(FIRST_PERSON + int(chat), text) for chat, text in messages])

    async def answered(self, count: int) -> None:
        await self._people.until(lambda: self._count() >= count, "answers", 120)

    def _count(self) -> int:
        seen = self._people.log
        self._answers += sum(one.what == "sent" for one in seen[self._counted :])
        self._counted = len(seen)
        return self._answers


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[MeasuredGateway]:
    with ChildServer("everthread.testing.telegram", "--token", TOKEN, "--no-limits") as emulator:
        async with TelegramUsers(emulator.url) as people:
            async with start_gateway(folder, TelegramLoad(people), emulator.url, kind="telegram") as measured:
                yield measured


async def messages(folder: Path) -> dict[str, Figure]:
    """Measure the cost of a message and its answer."""
    samples: list[float] = []
    async with gateway(folder) as measured:
        ready = await measured.line()
        await measured.grow(CHATS)
        await measured.say(BATCH)
        for _ in range(BATCHES):
            start = await measured.report()
            await measured.say(BATCH)
            samples.append(((await measured.report())["cpu_s"] - start["cpu_s"]) * 1000 / BATCH)
    return {"cpu_ms_per_message": Figure.of(samples), "ready_cpu_ms": Figure.exact(ready["cpu_s"] * 1000)}


async def throughput(folder: Path) -> dict[str, Figure]:
    """Measure updates per second with the gateway pinned to one core; the other processes use the other cores.

    Report the rate per second of wall-clock time, which other load slows down, and per second of CPU time.
    """
    samples: list[float] = []
    by_cpu: list[float] = []
    async with gateway(folder) as measured:
        await measured.line()
        os.sched_setaffinity(measured.process.pid, sorted(os.sched_getaffinity(0))[:1])
        await measured.grow(CHATS)
        await measured.say(BATCH)
        for _ in range(BATCHES):
            start, report = time.monotonic(), await measured.report()
            await measured.say(BATCH)
            samples.append(BATCH / (time.monotonic() - start))
            by_cpu.append(BATCH / ((await measured.report())["cpu_s"] - report["cpu_s"]))
    return {"updates_per_s": Figure.of(samples), "updates_per_cpu_s": Figure.of(by_cpu)}


async def measure_import(folder: Path) -> dict[str, Figure]:
    """Measure the import of the adapter, alone and in a process that has imported the gateway."""
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
    "import": measure_import,
}

TARGETS: dict[str, float] = {"cpu_ms_per_message": 9.0, "updates_per_s": 100.0}

if __name__ == "__main__":
    run("benchmarks.telegram", __doc__, STEPS, TARGETS)
