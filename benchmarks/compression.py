"""Measure compression and reviews: `python -m benchmarks.compression [--json] [--only NAME ...]`.

Decisions and boundaries are measured in CPU time, stalls of the event loop in wall-clock time. The model is a stub in
its own process. docs/reference/benchmarks.md explains each figure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from pathlib import Path

from benchmarks.agent_turns import BenchmarkAgent, model_server
from benchmarks.boundaries import LONG_SESSION_MESSAGES, LONG_TURN_MESSAGES
from benchmarks.measurement import Calls, Figure, cpu_ms, run
from benchmarks.store_fixture import OWNER, keys, store_fixture
from everthread.agent.compression.policy import ContextFill
from everthread.agent.compression.service import Compressor
from everthread.agent.compression.summarizer import SECTIONS
from everthread.agent.events import Compressed, Reviewed
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, ReviewSettings, Settings
from everthread.domain.boundary import Compress
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.gc_tuning import collect_and_freeze

BATCH = 500
BATCHES = 9
CROSSINGS = 40
SESSIONS = 20
ROUNDS = 30
TURNS = 20
TURN_CHARS = 10_000
TICK_S = 0.001
NOTE = 'memory:{"action": "add", "target": "user", "content": "Sails a boat called Bruno."}'
SUMMARY = "\n\n".join(f"## {name}\n- {'of boats and masts and sails ' * 10}" for name in SECTIONS)


async def decide_compression(folder: Path) -> dict[str, Figure]:
    """Measure the decision not to compress, in a process with many known sessions."""
    async with model_server() as url, Runtime(_settings(folder, url)) as runtime:
        await runtime.ready()
        compressor = _compressor(runtime)
        choice = runtime.choices()[0]
        key = SessionKey("main", "bench", ChatType.DM, "1")
        refs = [SessionRef(f"session-{number:026}", 0, key, 1, "me") for number in range(BATCH)]
        fill = ContextFill(12_000, 60_000, 240_000, context_tokens=20_000)

        async def decide(ref: SessionRef) -> None:
            compressor.consider(ref, fill, choice, lambda event: None)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(BATCHES):
                yield [partial(decide, ref) for ref in refs]

        return {"decide_ms": await cpu_ms(batches())}


async def cross_boundaries(folder: Path) -> dict[str, Figure]:
    """Measure a compression boundary in a lineage of 100,000 messages that grows by a session each time."""
    (key,) = keys(1)
    async with store_fixture(folder) as fixture:
        texts = repeat("A message of a very long session.", LONG_SESSION_MESSAGES)
        await fixture.fill(lambda number: key, texts, per_turn=LONG_TURN_MESSAGES)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(CROSSINGS):
                await fixture.run_turns([key], ["one", "two", "three", "four"])
                ref = await fixture.lifecycle.current(key)
                assert ref is not None
                session = await fixture.store.read(lambda uow, ref=ref: uow.sessions.get(ref.session_id))
                assert session is not None
                boundary = Compress(session.id, session.generation, SUMMARY, session.last_turn - 1)
                yield [partial(fixture.lifecycle.cross, key, boundary, owner=OWNER)]

        return {"cross_100k_ms": await cpu_ms(batches())}


async def measure_loop_stall(folder: Path) -> dict[str, Figure]:
    """Measure the longest stall of the event loop while twenty conversations are compressed and reviewed."""
    async with (
        model_server("--tool", NOTE) as url,
        model_server("--say", SUMMARY) as reader,
        Runtime(_settings(folder, url, reader)) as runtime,
    ):
        await runtime.ready()
        benchmark_agent = BenchmarkAgent(runtime, url)
        texts = cycle(["of boats and masts and sails, " * (TURN_CHARS // 60)])
        # Exclude the imports of the first answer.
        await benchmark_agent.turn(SessionKey("main", "bench", ChatType.DM, "0"), "hello")
        # Tune the garbage collector as a server process does.
        collect_and_freeze()
        idle = [(await _measure_stall(partial(asyncio.sleep, 0.5))).waited_ms for _ in range(ROUNDS)]
        busy: list[LoopStall] = []
        for number in range(ROUNDS):
            session_keys = [SessionKey("main", "bench", ChatType.DM, f"{number}-{chat}") for chat in range(SESSIONS)]
            for key in session_keys:
                await benchmark_agent._fill(key, TURNS, texts)  # noqa: SLF001 - fill sessions exactly as benchmarks.turn does
            busy.append(await _measure_stall(partial(_compress_and_review_all, runtime, session_keys)))
    # The median of the longest stall of each round: the machine itself pauses now and then, even when idle.
    figures = {
        "loop_stall_ms_max": [one.waited_ms for one in busy],
        "loop_stall_ms_idle": idle,
        "loop_held_cpu_ms_max": [one.held_ms for one in busy],
        "loop_stall_cpu_ms_max": [one.cpu_ms for one in busy],
    }
    return {name: Figure.of(values) for name, values in figures.items()}


async def _compress_and_review_all(runtime: Runtime, session_keys: list[SessionKey]) -> None:
    """Compress and review every session in the background. A review reads the whole conversation and writes a note."""
    compressor, choice = _compressor(runtime), runtime.choices()[0]
    events: list[object] = []
    reviews: list[Reviewed] = []
    runtime.agent.start_reviews(reviews.append)
    fill = ContextFill(12_000, TURNS * TURN_CHARS, 240_000, context_tokens=70_000)
    for key in session_keys:
        ref = await runtime.lifecycle.current(key)
        assert ref is not None
        compressor.consider(ref, fill, choice, events.append)
    while compressor.busy or len(reviews) < len(session_keys):  # noqa: ASYNC110 - no event announces the last review
        await asyncio.sleep(0.01)
    assert all(isinstance(event, Compressed) for event in events), events
    assert len(events) == len(reviews) == len(session_keys)


@dataclass
class LoopStall:
    """The longest delay of a task that only ticks."""

    waited_ms: float = 0.0
    cpu_ms: float = 0.0
    """The smaller of the delay and the CPU time of all threads during it: an upper bound of our own share."""
    held_ms: float = 0.0
    """CPU time of the event loop's thread between two ticks."""

    def record(self, waited_s: float, cpu_s: float, held_s: float) -> None:
        self.waited_ms = max(self.waited_ms, waited_s * 1000)
        self.cpu_ms = max(self.cpu_ms, min(waited_s, cpu_s) * 1000)
        self.held_ms = max(self.held_ms, held_s * 1000)


async def _measure_stall(work: Callable[[], Awaitable[object]]) -> LoopStall:
    task = asyncio.ensure_future(work())
    stall = LoopStall()
    while not task.done():
        start, worked, held = time.perf_counter(), time.process_time(), time.thread_time()
        await asyncio.sleep(TICK_S)
        stall.record(time.perf_counter() - start - TICK_S, time.process_time() - worked, time.thread_time() - held)
    await task
    return stall


def _settings(folder: Path, url: str, reader: str = "") -> Settings:
    return Settings(
        folder,
        model="stub/one",
        auxiliary_model="reader/one",
        providers={"stub": ProviderSettings(base_url=url), "reader": ProviderSettings(base_url=reader or url)},
        compression=CompressionSettings(tail_tokens=4_000),
        review=ReviewSettings(every_turns=TURNS),
    )


def _compressor(runtime: Runtime) -> Compressor:
    compressor = runtime.agent._compressor  # noqa: SLF001 - only this benchmark needs it
    assert compressor is not None
    return compressor


STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "decide": decide_compression,
    "cross": cross_boundaries,
    "stall": measure_loop_stall,
}

TARGETS: dict[str, float] = {
    "decide_ms": 0.1,
    "cross_100k_ms": 2.0,
    "loop_stall_ms_max": 20.0,
    "loop_stall_cpu_ms_max": 20.0,
    "loop_held_cpu_ms_max": 20.0,
}

if __name__ == "__main__":
    run("benchmarks.compression", __doc__, STEPS, TARGETS)
