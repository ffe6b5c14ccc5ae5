"""Measure deliveries to memory providers and the draining of a long backlog."""

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
from benchmarks.measurement import Figure
from benchmarks.providers_http import HttpProvider
from benchmarks.store_fixture import StoreFixture, keys, store_fixture
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
    """Measure the delivery of a backlog to a server that answers immediately."""
    async with _stub() as port:
        rounds = [await _deliver_backlog(folder, port) for _ in range(ROUNDS + 1)]
    rates, costs = zip(*rounds[1:], strict=True)
    return {"deliveries_per_s": Figure.of(rates), "delivery_cpu_ms": Figure.of(costs)}


async def _deliver_backlog(folder: Path, port: int) -> tuple[float, float]:
    """Return turns per second of wall-clock time and CPU milliseconds per turn (steadier on a busy machine)."""
    turns = SESSIONS * TURNS_EACH
    async with store_fixture(folder) as fixture:
        await backlog(fixture, SESSIONS, turns)
        start, cpu = time.monotonic(), time.process_time()
        await drain(fixture, HttpProvider("remote", port))
        return turns / (time.monotonic() - start), (time.process_time() - cpu) * 1000 / turns


async def backlog(fixture: StoreFixture, sessions: int, turns: int) -> None:
    """Store turns that the provider `remote` has not received."""
    await fixture.store.write(lambda uow: uow.cursors.register("remote"))
    of = keys(sessions)
    texts = itertools.cycle([text[:300] for text in corpus.messages(2_000)])
    await fixture.fill(lambda number: of[number % sessions], itertools.islice(texts, 2 * turns), per_turn=2)


async def drain(fixture: StoreFixture, provider: MemoryProvider) -> None:
    lanes = LocalLanes(fixture.store, fixture.clock, "bench:lanes")
    memory = MemoryManager([provider], fixture.store, fixture.clock, lanes, random=random.Random(1).random)
    await memory.start()
    start_gateway = asyncio.ensure_future(lanes.run())
    try:
        while (await memory.journal.status())[0].lanes.waiting_entries:  # noqa: ASYNC110 - no event announces the last delivery
            await asyncio.sleep(_LOOK_S)
    finally:
        start_gateway.cancel()
        await asyncio.wait({start_gateway})
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
    """Drain a backlog in a separate process, whose memory holds only the delivery."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.providers_drain", str(folder)), stdout=asyncio.subprocess.PIPE
    )
    texts, _ = await process.communicate()
    assert process.returncode == 0
    grown_mb, per_s = (float(word) for word in texts.split())
    return {"drain_100k_rss_growth_mb": Figure.exact(grown_mb), "drain_100k_per_s": Figure.exact(per_s)}
