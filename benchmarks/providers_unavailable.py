"""Measure a turn with an unavailable provider.

Three homes with the same conversations run in one process: two without a provider, one with a provider whose server
refuses connections. A round is the same turn in each home, in random order. The ratio of the two homes without a
provider is the control and should be 1.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.agent_turns import QUESTION_WORDS, BenchmarkAgent, model_server, texts, tools
from benchmarks.measurement import Figure, batch_cpu_ms
from benchmarks.providers_http import HttpProvider
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, Settings
from everthread.ports.memory import MemoryProvider

CLOSED_PORT = 9
ROUNDS = 1200
WARM_ROUNDS = 60
"""Rounds that open connections, fill caches and open the circuit breaker."""
KEYS = 6
MESSAGES = 100


async def dead_provider(folder: Path) -> dict[str, Figure]:
    words, rng = texts(), random.Random(1)
    # Keep warnings off the terminal.
    logging.getLogger("everthread").addHandler(logging.FileHandler(folder / "log"))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(model_server())
        dead = {"without": (), "again": (), "beside": (HttpProvider("dead", CLOSED_PORT),)}
        homes = {
            name: await stack.enter_async_context(_benchmark_agent(folder / name, url, *of))
            for name, of in dead.items()
        }
        keys = {name: await benchmark_agent.sessions(KEYS, MESSAGES, words) for name, benchmark_agent in homes.items()}
        for benchmark_agent in homes.values():
            await benchmark_agent.finish_reviews()
        costs: dict[str, list[float]] = {name: [] for name in homes}
        order = list(homes)
        for number in range(WARM_ROUNDS + ROUNDS):
            text = " ".join(next(words).split()[:QUESTION_WORDS])
            # Each turn affects the CPU caches of the next one.
            rng.shuffle(order)
            for name in order:
                turn = partial(homes[name].turn, keys[name][number % KEYS], text)
                costs[name].append(await batch_cpu_ms([turn]))
    return {
        "reply_ratio_dead_provider": _ratio(costs["beside"], costs["without"]),
        "reply_ratio_no_provider": _ratio(costs["again"], costs["without"]),
    }


def _ratio(these: list[float], those: list[float]) -> Figure:
    """Return the median ratio of the rounds, with the lowest and highest median of four quarters."""
    ratios = [this / that for this, that in zip(these[WARM_ROUNDS:], those[WARM_ROUNDS:], strict=True)]
    parts = [Figure.of(ratios[at : at + ROUNDS // 4]).value for at in range(0, ROUNDS, ROUNDS // 4)]
    return Figure(Figure.of(ratios).value, min(parts), max(parts))


@asynccontextmanager
async def _benchmark_agent(folder: Path, url: str, *providers: MemoryProvider) -> AsyncIterator[BenchmarkAgent]:
    whole = CompressionSettings(enabled=False)
    settings = Settings(folder, model="stub/one", providers={"stub": ProviderSettings(base_url=url)}, compression=whole)
    async with Runtime(settings, tools=tools(28), providers=providers) as runtime:
        await runtime.ready()
        yield BenchmarkAgent(runtime, url)
