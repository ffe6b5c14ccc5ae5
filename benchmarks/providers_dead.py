"""What a turn costs beside a provider that is gone.

The same conversations in three homes in one process: two without a provider, one with a provider whose server does not
answer. A round is the same turn in each of them, in an order that is drawn. The two without say how far the figure can
be trusted: of those the ratio should be 1.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.answering import SAID_WORDS, Office, model_server, texts, tools
from benchmarks.measuring import Figure, batch_cpu_ms
from benchmarks.providers_remote import Remote
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Compression, Provider, Settings
from everthread.ports.memory import MemoryProvider

CLOSED_PORT = 9
ROUNDS = 1200
WARM_ROUNDS = 60
"""The first pay for connections and caches, and for the failures by which a provider is known to be gone."""
KEYS = 6
MESSAGES = 100


async def dead_provider(folder: Path) -> dict[str, Figure]:
    words, dice = texts(), random.Random(1)
    # In earnest it goes to a file; here it would be printed.
    logging.getLogger("everthread").addHandler(logging.FileHandler(folder / "log"))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(model_server())
        dead = {"without": (), "again": (), "beside": (Remote("dead", CLOSED_PORT),)}
        homes = {name: await stack.enter_async_context(_office(folder / name, url, *of)) for name, of in dead.items()}
        keys = {name: await office.sessions(KEYS, MESSAGES, words) for name, office in homes.items()}
        for office in homes.values():
            await office.reviewed()
        spent: dict[str, list[float]] = {name: [] for name in homes}
        order = list(homes)
        for number in range(WARM_ROUNDS + ROUNDS):
            text = " ".join(next(words).split()[:SAID_WORDS])
            # Whoever comes after another finds the machine as that one left it.
            dice.shuffle(order)
            for name in order:
                turn = partial(homes[name].turn, keys[name][number % KEYS], text)
                spent[name].append(await batch_cpu_ms([turn]))
    return {
        "reply_ratio_dead_provider": _ratio(spent["beside"], spent["without"]),
        "reply_ratio_no_provider": _ratio(spent["again"], spent["without"]),
    }


def _ratio(these: list[float], those: list[float]) -> Figure:
    """The median of the rounds; the lowest and the highest of four parts of them."""
    ratios = [this / that for this, that in zip(these[WARM_ROUNDS:], those[WARM_ROUNDS:], strict=True)]
    parts = [Figure.of(ratios[at : at + ROUNDS // 4]).value for at in range(0, ROUNDS, ROUNDS // 4)]
    return Figure(Figure.of(ratios).value, min(parts), max(parts))


@asynccontextmanager
async def _office(folder: Path, url: str, *providers: MemoryProvider) -> AsyncIterator[Office]:
    whole = Compression(enabled=False)
    settings = Settings(folder, model="stub/one", providers={"stub": Provider(base_url=url)}, compression=whole)
    async with Runtime(settings, tools=tools(28), providers=providers) as runtime:
        await runtime.ready()
        yield Office(runtime, url)
