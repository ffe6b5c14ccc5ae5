"""Measure compression and reviews: `python -m benchmarks.compression [--json] [--only NAME ...]`.

Processor time for what is decided and crossed; time on the clock for how long the event loop is held. The model is a
stub in a process of its own. docs/reference/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat
from pathlib import Path

from benchmarks.answering import Office, model_server
from benchmarks.boundaries import LONG_SESSION_MESSAGES, LONG_TURN_MESSAGES
from benchmarks.measuring import Calls, Figure, cpu_ms, run
from benchmarks.stage import OWNER, keys, staged
from everthread.agent.compression.policy import Fill
from everthread.agent.compression.service import Compressor
from everthread.agent.compression.summarizer import SECTIONS
from everthread.agent.events import Compressed, Reviewed
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Compression, Provider, Review, Settings
from everthread.domain.boundary import Compress
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.gc_tuning import settle

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


async def decided(folder: Path) -> dict[str, Figure]:
    """What a turn pays to know that nothing is to be done, in a process that knows a thousand sessions."""
    async with model_server() as url, Runtime(_settings(folder, url)) as runtime:
        await runtime.ready()
        compressor = _compressor(runtime)
        choice = runtime.choices()[0]
        key = SessionKey("main", "bench", ChatType.DM, "1")
        refs = [SessionRef(f"session-{number:026}", 0, key, 1, "me") for number in range(BATCH)]
        fill = Fill(12_000, 60_000, 240_000, context_tokens=20_000)

        async def decide(ref: SessionRef) -> None:
            compressor.consider(ref, fill, choice, lambda event: None)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(BATCHES):
                yield [partial(decide, ref) for ref in refs]

        return {"decide_ms": await cpu_ms(batches())}


async def crossed(folder: Path) -> dict[str, Figure]:
    """Crossing into a continuation, in a lineage of 100,000 messages that grows by a session each time."""
    (key,) = keys(1)
    async with staged(folder) as stage:
        texts = repeat("A message of a very long session.", LONG_SESSION_MESSAGES)
        await stage.fill(lambda number: key, texts, per_turn=LONG_TURN_MESSAGES)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(CROSSINGS):
                await stage.talked([key], ["one", "two", "three", "four"])
                ref = await stage.lifecycle.current(key)
                assert ref is not None
                session = await stage.store.read(lambda uow, ref=ref: uow.sessions.get(ref.session_id))
                assert session is not None
                boundary = Compress(session.id, session.generation, SUMMARY, session.last_turn - 1)
                yield [partial(stage.lifecycle.cross, key, boundary, owner=OWNER)]

        return {"cross_100k_ms": await cpu_ms(batches())}


async def held_up(folder: Path) -> dict[str, Figure]:
    """The longest that anybody waited for the event loop while twenty conversations were compressed and reviewed."""
    async with (
        model_server("--tool", NOTE) as url,
        model_server("--say", SUMMARY) as reader,
        Runtime(_settings(folder, url, reader)) as runtime,
    ):
        await runtime.ready()
        office = Office(runtime, url)
        texts = cycle(["of boats and masts and sails, " * (TURN_CHARS // 60)])
        # What the first answer of a process imports is no part of this.
        await office.turn(SessionKey("main", "bench", ChatType.DM, "0"), "hello")
        # As every process does that serves.
        settle()
        idle = [(await _longest(partial(asyncio.sleep, 0.5))).waited_ms for _ in range(ROUNDS)]
        busy: list[Longest] = []
        for number in range(ROUNDS):
            places = [SessionKey("main", "bench", ChatType.DM, f"{number}-{place}") for place in range(SESSIONS)]
            for place in places:
                await office._fill(place, TURNS, texts)  # noqa: SLF001 - the same conversations as the other benchmark
            busy.append(await _longest(partial(_do_all, runtime, places)))
    # Of the longest of each round, the median: now and then the machine itself stands still, also when nothing is done.
    figures = {
        "loop_stall_ms_max": [one.waited_ms for one in busy],
        "loop_stall_ms_idle": idle,
        "loop_held_cpu_ms_max": [one.held_ms for one in busy],
        "loop_stall_cpu_ms_max": [one.cpu_ms for one in busy],
    }
    return {name: Figure.of(values) for name, values in figures.items()}


async def _do_all(runtime: Runtime, places: list[SessionKey]) -> None:
    """As after a turn of each: in the background. A review reads the whole conversation, and writes a note."""
    compressor, choice = _compressor(runtime), runtime.choices()[0]
    heard: list[object] = []
    written: list[Reviewed] = []
    runtime.agent.attend_to_reviews(written.append)
    fill = Fill(12_000, TURNS * TURN_CHARS, 240_000, context_tokens=70_000)
    for key in places:
        ref = await runtime.lifecycle.current(key)
        assert ref is not None
        compressor.consider(ref, fill, choice, heard.append)
    while compressor.busy or len(written) < len(places):  # noqa: ASYNC110 - nobody else needs to be told
        await asyncio.sleep(0.01)
    assert all(isinstance(event, Compressed) for event in heard), heard
    assert len(heard) == len(written) == len(places)


@dataclass
class Longest:
    """How long a task which only wants to tick had to wait beyond its time, at most."""

    waited_ms: float = 0.0
    cpu_ms: float = 0.0
    """Of one wait, what all our threads worked meanwhile, if that is less: no more of it can be our doing."""
    held_ms: float = 0.0
    """What the loop's own thread worked from one tick to the next, whatever else the machine did meanwhile."""

    def saw(self, waited_s: float, cpu_s: float, held_s: float) -> None:
        self.waited_ms = max(self.waited_ms, waited_s * 1000)
        self.cpu_ms = max(self.cpu_ms, min(waited_s, cpu_s) * 1000)
        self.held_ms = max(self.held_ms, held_s * 1000)


async def _longest(work: Callable[[], Awaitable[object]]) -> Longest:
    task = asyncio.ensure_future(work())
    longest = Longest()
    while not task.done():
        begun, worked, held = time.perf_counter(), time.process_time(), time.thread_time()
        await asyncio.sleep(TICK_S)
        longest.saw(time.perf_counter() - begun - TICK_S, time.process_time() - worked, time.thread_time() - held)
    await task
    return longest


def _settings(folder: Path, url: str, reader: str = "") -> Settings:
    return Settings(
        folder,
        model="stub/one",
        auxiliary_model="reader/one",
        providers={"stub": Provider(base_url=url), "reader": Provider(base_url=reader or url)},
        compression=Compression(tail_tokens=4_000),
        review=Review(every_turns=TURNS),
    )


def _compressor(runtime: Runtime) -> Compressor:
    compressor = runtime.agent._compressor  # noqa: SLF001 - nobody else needs to reach it
    assert compressor is not None
    return compressor


STEPS: dict[str, Callable[[Path], Awaitable[dict[str, Figure]]]] = {
    "decide": decided,
    "cross": crossed,
    "stall": held_up,
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
