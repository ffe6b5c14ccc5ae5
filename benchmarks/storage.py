"""The corpus, stored: how long a search takes in it and how much of the disk it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from benchmarks import corpus
from benchmarks.measuring import Calls, Figure, cpu_ms
from benchmarks.stage import MESSAGES_PER_TURN, OWNER, Stage, keys, staged
from everthread.adapters.memory.builtin import BuiltinMemory
from everthread.domain.model import SessionRef
from everthread.store.unit_of_work import UnitOfWork

MESSAGES = 100_000
TURNS_PER_SESSION = 50
HITS = 20
SEARCHES = 15

# Besides the conversation, the file keeps what came in and what went out, so that neither is lost or repeated.
_COPIES = "'inbox', 'inbox_update', 'inbox_open', 'replies', 'replies_open'"


async def stored(folder: Path) -> dict[str, Figure]:
    text_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal text_bytes
        for text in corpus.messages(MESSAGES):
            text_bytes += len(text.encode())
            yield text

    async with staged(folder) as stage:
        places = keys(MESSAGES // MESSAGES_PER_TURN // TURNS_PER_SESSION)
        await stage.fill(lambda number: places[number % len(places)], texts())
        newest = await cpu_ms(_searches(stage, ranked=False))
        ranked = await cpu_ms(_searches(stage, ranked=True))
        recalled = await cpu_ms(_recalls(stage))
        stage.checkpoint()
        whole = stage.path.stat().st_size
        copies = stage.number(f"SELECT SUM(pgsize) FROM dbstat WHERE name IN ({_COPIES})")
    return {
        "search_newest_ms": newest,
        "search_ranked_ms": ranked,
        "recall_ms": recalled,
        "disk_ratio": Figure.exact((whole - copies) / text_bytes),
        "disk_ratio_with_inbox_and_replies": Figure.exact(whole / text_bytes),
    }


async def _searches(stage: Stage, *, ranked: bool) -> AsyncIterator[Calls]:
    def hits(uow: UnitOfWork) -> int:
        return len(uow.search.search(OWNER, corpus.MARKER, limit=HITS, ranked=ranked))

    async def search() -> None:
        await stage.store.index()
        assert await stage.store.read(hits) == HITS

    for _ in range(SEARCHES):
        yield [search]


async def _recalls(stage: Stage) -> AsyncIterator[Calls]:
    """Questions of four telling words each, asked from a session with nothing in it."""
    memory = BuiltinMemory(stage.store, stage.clock)
    ref = SessionRef("new", 0, keys(1)[0], 1, OWNER)
    for question in corpus.questions(SEARCHES):

        async def recall(question: str = question) -> None:
            assert len(await memory.prefetch(question, ref=ref, limit=HITS)) > 0

        yield [recall]
