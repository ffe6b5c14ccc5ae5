"""What memory providers cost: one that is dead, many deliveries, and a long backlog."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks import corpus
from benchmarks.answering import SAID_WORDS, Office, model_server, texts, tools
from benchmarks.measuring import Figure, batch_cpu_ms
from benchmarks.stage import Stage, keys, staged
from everthread.adapters.lanes.local import LocalLanes
from everthread.bootstrap import Runtime
from everthread.config import Compression, Provider, Settings
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import SessionKey, SessionRef
from everthread.memory import MemoryManager
from everthread.ports import Capability, MemoryProvider, RecallItem

CLOSED_PORT = 9
PAIRS = 120
KEYS = 6
"""Few at a time, so that what else the machine does hits both alike."""
SESSIONS, TURNS_EACH = 40, 50
ROUNDS = 3
BACKLOG = 100_000
BACKLOG_SESSIONS = 500
_LOOK_S = 0.1


class Remote(MemoryProvider):
    """Posts every turn to a server, one request each, as an adapter does."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL
        self._url = f"http://127.0.0.1:{port}/turns"
        self._client: aiohttp.ClientSession | None = None

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        told = {"id": delivery.key, "session": ref.session_id, "user": user, "assistant": assistant}
        await self._post(msgspec.json.encode(told))

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        await self._post(msgspec.json.encode({"query": query}))
        return ()

    async def shutdown(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post(self, body: bytes) -> None:
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10))
        try:
            async with self._client.post(self._url, data=body) as answer:
                await answer.read()
        except aiohttp.ClientError as error:
            raise Unavailable(self.name, str(error)) from error


# --- A turn beside a dead provider ---------------------------------------------------------------------------------


async def dead_provider(folder: Path) -> dict[str, Figure]:
    """The same turns in two homes, a few here, a few there."""
    words = texts()
    async with model_server() as url, _office(folder / "a", url) as without:
        async with _office(folder / "b", url, Remote("dead", CLOSED_PORT)) as beside:
            places = [(place, await place.sessions(KEYS, 100, words)) for place in (without, beside)]
            for place, _ in places:
                await place.reviewed()
            ratios: list[float] = []
            for number in range(PAIRS + 1):
                # Whoever comes second finds the machine warmer.
                order = places if number % 2 else places[::-1]
                spent = {id(place): await _batch(place, of, words) for place, of in order}
                ratios.append(spent[id(beside)] / spent[id(without)])
    return {"reply_ratio_dead_provider": Figure.of(ratios[1:])}


@asynccontextmanager
async def _office(folder: Path, url: str, *providers: MemoryProvider) -> AsyncIterator[Office]:
    whole = Compression(enabled=False)
    settings = Settings(folder, model="stub/one", providers={"stub": Provider(base_url=url)}, compression=whole)
    async with Runtime(settings, tools=tools(28), providers=providers) as runtime:
        await runtime.ready()
        yield Office(runtime, url)


async def _batch(place: Office, of: list[SessionKey], words: itertools.cycle[str]) -> float:
    return await batch_cpu_ms([partial(place.turn, key, " ".join(next(words).split()[:SAID_WORDS])) for key in of])


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
