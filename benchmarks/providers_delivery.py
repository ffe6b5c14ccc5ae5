"""What memory providers cost: many deliveries, and a long backlog."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import corpus
from benchmarks.measuring import Figure
from benchmarks.providers_remote import Remote
from benchmarks.stage import Stage, keys, staged
from everthread.adapters.lanes.local import LocalLanes
from everthread.memory import MemoryManager
from everthread.ports.memory import MemoryProvider

SESSIONS, TURNS_EACH = 40, 50
ROUNDS = 3
BACKLOG = 100_000
BACKLOG_SESSIONS = 500
_LOOK_S = 0.1


# --- Deliveries ----------------------------------------------------------------------------------------------------


async def deliveries(folder: Path) -> dict[str, Figure]:
    """From the first to the last turn of a backlog, to a server that answers at once."""
    async with _stub() as port:
        rounds = [await _delivered(folder, port) for _ in range(ROUNDS + 1)]
    rates, costs = zip(*rounds[1:], strict=True)
    return {"deliveries_per_s": Figure.of(rates), "delivery_cpu_ms": Figure.of(costs)}


async def _delivered(folder: Path, port: int) -> tuple[float, float]:
    """Turns a second by the wall, and milliseconds of processor time for each, which a busy machine changes less."""
    turns = SESSIONS * TURNS_EACH
    async with staged(folder) as stage:
        await backlog(stage, SESSIONS, turns)
        begun, cpu = time.monotonic(), time.process_time()
        await drained(stage, Remote("remote", port))
        return turns / (time.monotonic() - begun), (time.process_time() - cpu) * 1000 / turns


async def backlog(stage: Stage, sessions: int, turns: int) -> None:
    """Turns that a provider called `remote` has not been told of."""
    await stage.store.write(lambda uow: uow.cursors.register("remote"))
    of = keys(sessions)
    said = itertools.cycle([text[:300] for text in corpus.messages(2_000)])
    await stage.fill(lambda number: of[number % sessions], itertools.islice(said, 2 * turns), per_turn=2)


async def drained(stage: Stage, provider: MemoryProvider) -> None:
    lanes = LocalLanes(stage.store, stage.clock, "bench:lanes")
    memory = MemoryManager([provider], stage.store, stage.clock, lanes, random=random.Random(1).random)
    await memory.start()
    serving = asyncio.ensure_future(lanes.run())
    try:
        while (await memory.journal.status())[0].lanes.waiting_entries:  # noqa: ASYNC110 - nobody is told of the last
            await asyncio.sleep(_LOOK_S)
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        await memory.shutdown()


@asynccontextmanager
async def _stub() -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.providers_stub", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


# --- A long backlog ------------------------------------------------------------------------------------------------


async def long_backlog(folder: Path) -> dict[str, Figure]:
    """In a process of its own, which has nothing in memory but what delivering takes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.providers_drain", str(folder)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    grown_mb, per_s = (float(word) for word in said.split())
    return {"drain_100k_rss_growth_mb": Figure.exact(grown_mb), "drain_100k_per_s": Figure.exact(per_s)}
