"""Measure turns in the store: one writer, a hundred concurrent writers, and delivery to providers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import corpus
from benchmarks.measurement import Calls, Figure, batch_cpu_ms, count_syncs, cpu_ms
from benchmarks.store_fixture import HOLDER, OWNER, StoreFixture, keys, make_turn, store_fixture
from everthread.adapters.lanes.local import LocalLanes
from everthread.domain.model import Inbound, SessionKey
from everthread.memory import MemoryManager
from everthread.ports.memory import MemoryProvider
from everthread.store.unit_of_work import UnitOfWork

_Write = Callable[[Callable[[UnitOfWork], None]], Awaitable[None]]
TEXT_CHARS = 430
BATCH = 40
BATCHES = 17
"""Without the first batch, five times the number of turns that are indexed together."""
WRITERS = 100
TURNS_PER_WRITER = 5
BACKLOG_TURNS = 400


def equal_texts() -> cycle[str]:
    """Return texts of realistic and equal size, so that batches can be compared."""
    long = (text for text in corpus.messages(2_000) if TEXT_CHARS <= len(text) and text.isascii())
    return cycle([text[:TEXT_CHARS] for text in long])


async def single_writer(folder: Path) -> dict[str, Figure]:
    """Measure one writer that waits for each commit, so that no commit is shared."""
    texts = equal_texts()
    async with store_fixture(folder) as fixture:
        session_keys = keys(BATCH)
        await _register_providers(fixture, session_keys, texts)
        accept, begin = _Samples(), _Samples()
        commits = [
            await batch_cpu_ms(calls) async for calls in _commit_calls(fixture, session_keys, texts, accept, begin)
        ][1:]
        bare = await cpu_ms(_one_row_calls(fixture, fixture.store.write_inline))
        by_thread = await cpu_ms(_one_row_calls(fixture, fixture.store.write))
    return {
        "commit_turn_cpu_ms": Figure.of(commits),
        # The mean includes the share of periodic work, which a median hides.
        "commit_turn_mean_cpu_ms": Figure.exact(fmean(commits)),
        "accept_cpu_ms": accept.figure(),
        "begin_turn_cpu_ms": begin.figure(),
        "one_row_jot_cpu_ms": bare,
        "one_row_write_cpu_ms": by_thread,
    }


async def concurrent_writers(folder: Path) -> dict[str, Figure]:
    """Measure fsyncs per turn with many concurrent writers. All writes of a turn count, not only its commit."""
    texts = equal_texts()
    with count_syncs() as syncs:
        async with store_fixture(folder) as fixture:

            async def writer(key: SessionKey) -> None:
                for _ in range(TURNS_PER_WRITER):
                    await fixture.run_turns([key], list(islice(texts, 4)))

            before = syncs()
            await asyncio.gather(*map(writer, keys(WRITERS)))
            count = syncs() - before
    return {"fsyncs_per_turn_100_writers": Figure.exact(count / (WRITERS * TURNS_PER_WRITER))}


async def deliver_backlog(folder: Path) -> dict[str, Figure]:
    """Measure deliveries per CPU second of a backlog to a provider that answers immediately."""
    texts = equal_texts()
    async with store_fixture(folder) as fixture:
        lanes = LocalLanes(fixture.store, fixture.clock, HOLDER)
        provider = _InstantProvider()
        memory = MemoryManager([provider], fixture.store, fixture.clock, lanes, random=random.Random(1).random)
        await memory.start()
        session_keys = keys(20)
        await fixture.fill(lambda number: session_keys[number % len(session_keys)], islice(texts, 4 * BACKLOG_TURNS))
        start = time.process_time()
        running = asyncio.ensure_future(lanes.run())
        await provider.done.wait()
        spent_s = time.process_time() - start
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await memory.shutdown()
    return {"deliveries_per_cpu_s": Figure.exact(BACKLOG_TURNS / spent_s)}


class _InstantProvider(MemoryProvider):
    name = "instant"

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()
        self._turn_calls = 0

    async def sync_turn(self, user: str, assistant: str, **arguments: Any) -> None:
        self._turn_calls += 1
        if self._turn_calls == BACKLOG_TURNS:
            self.done.set()


class _Samples:
    """CPU samples of the steps that precede the measured one."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def measure_calls(self, calls: Calls) -> list[Any]:
        start = time.process_time()
        results = [await call() for call in calls]
        self.samples.append((time.process_time() - start) * 1000 / len(calls))
        return results

    def figure(self) -> Figure:
        return Figure.of(self.samples[1:])


async def _commit_calls(
    fixture: StoreFixture, session_keys: list[SessionKey], texts: cycle[str], accept: _Samples, begin: _Samples
) -> AsyncIterator[Calls]:
    lifecycle = fixture.lifecycle
    for _ in range(BATCHES):
        await accept.measure_calls(
            [partial(lifecycle.accept, Inbound(key, OWNER, next(texts))) for key in session_keys]
        )
        claims = await begin.measure_calls([partial(lifecycle.begin_turn, key) for key in session_keys])
        calls: list[Any] = []
        for claim in claims:
            four = list(islice(texts, 4))
            calls.append(partial(lifecycle.commit_turn, claim, make_turn(four), four[-1]))
        yield calls


async def _one_row_calls(fixture: StoreFixture, write: _Write) -> AsyncIterator[Calls]:
    """Yield the cheapest durable writes: one fsync and, through the writer thread, two thread switches."""

    def work(uow: UnitOfWork) -> None:
        uow.leases.keep_alive(HOLDER, fixture.clock.now(), 30.0)

    for _ in range(BATCHES):
        yield [partial(write, work)] * BATCH


async def _register_providers(fixture: StoreFixture, session_keys: list[SessionKey], texts: cycle[str]) -> None:
    """Register two providers that know every session and have received nothing yet."""

    def register(uow: UnitOfWork) -> None:
        for name in ("first", "second"):
            uow.cursors.register(name)

    def discover(uow: UnitOfWork) -> None:
        for name in ("first", "second"):
            uow.cursors.discover(name, fixture.clock.now(), 1_000)

    await fixture.store.write(register)
    await fixture.run_turns(session_keys, list(islice(texts, 4)))
    await fixture.store.write(discover)
