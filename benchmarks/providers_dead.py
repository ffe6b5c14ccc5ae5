"""What a turn costs beside a provider that is gone: `python -m benchmarks.providers_dead URL FOLDER [PORT]`.

The same conversations in three homes, each in a process of its own: two without a provider, one with a provider whose
server does not answer. They take turns, a few turns each, and each is charged with all that its process does, also
while the others are at work. The two without say how far the figures can be trusted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks.answering import SAID_WORDS, Office, model_server, texts, tools
from benchmarks.measuring import Figure
from benchmarks.providers_remote import Remote
from everthread.bootstrap import Runtime
from everthread.config import Compression, Provider, Settings
from everthread.domain.model import SessionKey

CLOSED_PORT = "9"
ROUNDS = 240
WARM_ROUNDS = 10
"""The first pay for connections and caches, and for the failures by which a provider is known to be gone."""
KEYS = 6
TURNS_EACH = 2
MESSAGES = 100


class _Home:
    """A process that answers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._spent_s = 0.0

    async def answered(self) -> float:
        """Let it answer a few; seconds of processor time that it has spent since it was asked last."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        before, self._spent_s = self._spent_s, float(await self._process.stdout.readline())
        return self._spent_s - before


async def dead_provider(folder: Path) -> dict[str, Figure]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(model_server())
        ports = {"without": (), "again": (), "beside": (CLOSED_PORT,)}
        homes = {
            name: await stack.enter_async_context(_home(url, folder / name, *port)) for name, port in ports.items()
        }
        spent: dict[str, list[float]] = {name: [] for name in homes}
        order, dice = list(homes), random.Random(1)
        for _ in range(WARM_ROUNDS + ROUNDS):
            # Whoever comes after another finds the machine as that one left it.
            dice.shuffle(order)
            for name in order:
                spent[name].append(await homes[name].answered())
    without, again, beside = (of[WARM_ROUNDS:] for of in spent.values())
    either = [(this + that) / 2 for this, that in zip(without, again, strict=True)]
    return {
        "reply_ratio_dead_provider": _ratio(beside, either),
        "reply_ratio_of_the_whole": Figure.exact(sum(beside) / sum(either)),
        "reply_ratio_no_provider": _ratio(again, without),
    }


def _ratio(these: list[float], those: list[float]) -> Figure:
    return Figure.of([this / that for this, that in zip(these, those, strict=True)])


@asynccontextmanager
async def _home(url: str, folder: Path, *port: str) -> AsyncIterator[_Home]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.providers_dead", url, str(folder), *port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        yield _Home(process)
    finally:
        process.stdin.close()
        await process.wait()


# --- In the process --------------------------------------------------------------------------------------------------


async def _answer(url: str, folder: Path, *port: str) -> None:
    """A few turns for each line of the input."""
    words = texts()
    whole = Compression(enabled=False)
    settings = Settings(folder, model="stub/one", providers={"stub": Provider(base_url=url)}, compression=whole)
    dead = [Remote("dead", int(number)) for number in port]
    async with Runtime(settings, tools=tools(28), providers=dead) as runtime:
        await runtime.ready()
        office = Office(runtime, url)
        keys = await office.sessions(KEYS, MESSAGES, words)
        await office.reviewed()
        while await asyncio.to_thread(sys.stdin.readline):
            await _batch(office, keys, words)
            print(time.process_time(), flush=True)


async def _batch(office: Office, keys: list[SessionKey], words: itertools.cycle[str]) -> None:
    for key in keys * TURNS_EACH:
        await office.turn(key, " ".join(next(words).split()[:SAID_WORDS]))


if __name__ == "__main__":
    logging.basicConfig(filename=f"{sys.argv[2]}.log")
    asyncio.run(_answer(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
