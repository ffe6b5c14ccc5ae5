"""Turns: one by one, a hundred writers at once, and on their way to providers."""

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
from benchmarks.measuring import Calls, Figure, batch_cpu_ms, counted_syncs, cpu_ms
from benchmarks.stage import HOLDER, OWNER, Stage, keys, staged, turn_of
from everthread.adapters.lanes.local import LocalLanes
from everthread.domain.model import Inbound, SessionKey
from everthread.memory import MemoryManager
from everthread.ports.memory import MemoryProvider
from everthread.store.unit_of_work import UnitOfWork

_Put = Callable[[Callable[[UnitOfWork], None]], Awaitable[None]]
TEXT_CHARS = 430
BATCH = 40
BATCHES = 17
"""Without the first, five times the turns whose words are indexed at once."""
WRITERS = 100
TURNS_PER_WRITER = 5
BACKLOG_TURNS = 400


def texts_of_one_size() -> cycle[str]:
    """Texts of a turn of realistic size, one like another, so that batches can be compared."""
    long = (text for text in corpus.messages(2_000) if TEXT_CHARS <= len(text) and text.isascii())
    return cycle([text[:TEXT_CHARS] for text in long])


async def one_by_one(folder: Path) -> dict[str, Figure]:
    """One writer that waits for each: nothing to share a commit with."""
    texts = texts_of_one_size()
    async with staged(folder) as stage:
        places = keys(BATCH)
        await _register_waiting(stage, places, texts)
        accept, begin = _Split(), _Split()
        commits = [await batch_cpu_ms(calls) async for calls in _commits(stage, places, texts, accept, begin)][1:]
        bare = await cpu_ms(_one_row(stage, stage.store.write_inline))
        by_thread = await cpu_ms(_one_row(stage, stage.store.write))
    return {
        "commit_turn_cpu_ms": Figure.of(commits),
        # With its share of what one turn in many does for all of them, which a median does not show.
        "commit_turn_mean_cpu_ms": Figure.exact(fmean(commits)),
        "accept_cpu_ms": accept.figure(),
        "begin_turn_cpu_ms": begin.figure(),
        "one_row_jot_cpu_ms": bare,
        "one_row_write_cpu_ms": by_thread,
    }


async def together(folder: Path) -> dict[str, Figure]:
    """Many writers at once: how many turns share an fsync. All that a turn writes counts, not its commit alone."""
    texts = texts_of_one_size()
    with counted_syncs() as syncs:
        async with staged(folder) as stage:

            async def writer(key: SessionKey) -> None:
                for _ in range(TURNS_PER_WRITER):
                    await stage.talked([key], list(islice(texts, 4)))

            before = syncs()
            await asyncio.gather(*map(writer, keys(WRITERS)))
            count = syncs() - before
    return {"fsyncs_per_turn_100_writers": Figure.exact(count / (WRITERS * TURNS_PER_WRITER))}


async def delivered(folder: Path) -> dict[str, Figure]:
    """A backlog handed to a provider that answers at once, per second of processor time."""
    texts = texts_of_one_size()
    async with staged(folder) as stage:
        lanes = LocalLanes(stage.store, stage.clock, HOLDER)
        provider = _Instant()
        memory = MemoryManager([provider], stage.store, stage.clock, lanes, random=random.Random(1).random)
        await memory.start()
        places = keys(20)
        await stage.fill(lambda number: places[number % len(places)], islice(texts, 4 * BACKLOG_TURNS))
        begun = time.process_time()
        running = asyncio.ensure_future(lanes.run())
        await provider.done.wait()
        spent_s = time.process_time() - begun
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await memory.shutdown()
    return {"deliveries_per_cpu_s": Figure.exact(BACKLOG_TURNS / spent_s)}


class _Instant(MemoryProvider):
    name = "instant"

    def __init__(self) -> None:
        super().__init__()
        self.done = asyncio.Event()
        self._turns = 0

    async def sync_turn(self, user: str, assistant: str, **given: Any) -> None:
        self._turns += 1
        if self._turns == BACKLOG_TURNS:
            self.done.set()


class _Split:
    """Samples of what comes before the part that is measured."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    async def took(self, calls: Calls) -> list[Any]:
        begun = time.process_time()
        results = [await call() for call in calls]
        self.samples.append((time.process_time() - begun) * 1000 / len(calls))
        return results

    def figure(self) -> Figure:
        return Figure.of(self.samples[1:])


async def _commits(
    stage: Stage, places: list[SessionKey], texts: cycle[str], accept: _Split, begin: _Split
) -> AsyncIterator[Calls]:
    lifecycle = stage.lifecycle
    for _ in range(BATCHES):
        await accept.took([partial(lifecycle.accept, Inbound(key, OWNER, next(texts))) for key in places])
        tickets = await begin.took([partial(lifecycle.begin_turn, key) for key in places])
        calls: list[Any] = []
        for ticket in tickets:
            four = list(islice(texts, 4))
            calls.append(partial(lifecycle.commit_turn, ticket, turn_of(four), four[-1]))
        yield calls


async def _one_row(stage: Stage, put: _Put) -> AsyncIterator[Calls]:
    """The least that a durable write can cost here: one fsync and, by the writer's thread, two changes of thread."""

    def work(uow: UnitOfWork) -> None:
        uow.leases.keep_alive(HOLDER, stage.clock.now(), 30.0)

    for _ in range(BATCHES):
        yield [partial(put, work)] * BATCH


async def _register_waiting(stage: Stage, places: list[SessionKey], texts: cycle[str]) -> None:
    """Two providers that have been told of every session and have taken nothing yet."""

    def register(uow: UnitOfWork) -> None:
        for name in ("first", "second"):
            uow.cursors.register(name)

    def discover(uow: UnitOfWork) -> None:
        for name in ("first", "second"):
            uow.cursors.discover(name, stage.clock.now(), 1_000)

    await stage.store.write(register)
    await stage.talked(places, list(islice(texts, 4)))
    await stage.store.write(discover)
