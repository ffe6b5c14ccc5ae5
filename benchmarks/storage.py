"""Measure searches in the stored corpus and its size on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from benchmarks import corpus
from benchmarks.measurement import Calls, Figure, cpu_ms
from benchmarks.store_fixture import MESSAGES_PER_TURN, OWNER, StoreFixture, keys, store_fixture
from everthread.adapters.memory.builtin import BuiltinMemory
from everthread.domain.model import SessionRef
from everthread.store.unit_of_work import UnitOfWork

MESSAGES = 100_000
TURNS_PER_SESSION = 50
HITS = 20
SEARCHES = 15

# Inbox and outbox rows, which the file keeps besides the conversation.
_COPIES = "'inbox', 'inbox_update', 'inbox_open', 'replies', 'replies_open'"


async def store_corpus(folder: Path) -> dict[str, Figure]:
    text_bytes = 0

    def texts() -> Iterator[str]:
        nonlocal text_bytes
        for text in corpus.messages(MESSAGES):
            text_bytes += len(text.encode())
            yield text

    async with store_fixture(folder) as fixture:
        session_keys = keys(MESSAGES // MESSAGES_PER_TURN // TURNS_PER_SESSION)
        await fixture.fill(lambda number: session_keys[number % len(session_keys)], texts())
        newest = await cpu_ms(_search_calls(fixture, ranked=False))
        ranked = await cpu_ms(_search_calls(fixture, ranked=True))
        recalled = await cpu_ms(_recall_calls(fixture))
        fixture.checkpoint()
        whole = fixture.path.stat().st_size
        copies = fixture.number(f"SELECT SUM(pgsize) FROM dbstat WHERE name IN ({_COPIES})")
    return {
        "search_newest_ms": newest,
        "search_ranked_ms": ranked,
        "recall_ms": recalled,
        "disk_ratio": Figure.exact((whole - copies) / text_bytes),
        "disk_ratio_with_inbox_and_replies": Figure.exact(whole / text_bytes),
    }


async def _search_calls(fixture: StoreFixture, *, ranked: bool) -> AsyncIterator[Calls]:
    def hits(uow: UnitOfWork) -> int:
        return len(uow.search.search(OWNER, corpus.MARKER, limit=HITS, ranked=ranked))

    async def search() -> None:
        await fixture.store.index()
        assert await fixture.store.read(hits) == HITS

    for _ in range(SEARCHES):
        yield [search]


async def _recall_calls(fixture: StoreFixture) -> AsyncIterator[Calls]:
    """Yield recalls of questions of four rare words, asked from an empty session."""
    memory = BuiltinMemory(fixture.store, fixture.clock)
    ref = SessionRef("new", 0, keys(1)[0], 1, OWNER)
    for question in corpus.questions(SEARCHES):

        async def recall(question: str = question) -> None:
            assert len(await memory.prefetch(question, ref=ref, limit=HITS)) > 0

        yield [recall]
