"""The Hindsight provider against a fake server: owners, retries, failures and forgetting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.hindsight import FakeHindsight
from tests.provider_session import ProviderSession

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import ForgetScope

ANN, BOB = "telegram:1", "telegram:2"
BANK = "everthread__main__telegram_3a1"


@pytest.fixture
def server() -> Iterator[FakeHindsight]:
    with FakeHindsight() as server:
        yield server


@asynccontextmanager
async def hindsight(server: FakeHindsight, **settings: Any) -> AsyncIterator[Hindsight]:
    async def no_sleep(seconds: float) -> None:
        return None

    provider = Hindsight(sleep=no_sleep)
    await provider.initialize(**{"address": server.address, "profile": "main", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def read_all(provider: Hindsight, owner: str) -> str:
    """Everything that an owner can read in the words of the question: recalled, and by each tool."""
    session = ProviderSession(provider, "reading", owner)
    texts = [text for text, _, _ in await session.recall("my password is")]
    for tool in ("hindsight_recall", "hindsight_reflect"):
        texts.append(await provider.handle_tool_call(tool, {"query": "my password is"}, ref=session.ref))
    return "\n".join(texts)


async def test_an_owner_reads_only_their_own_memories(server: FakeHindsight) -> None:
    words = {ANN: ("larkspur", "verbena"), BOB: ("foxglove", "yarrow")}
    async with hindsight(server) as provider:
        for owner, (said, noted) in words.items():
            session = ProviderSession(provider, f"s{said}", owner)
            await session.say(f"my password is {said}")
            await session.note(f"my password is {noted} too", version=1)
        for owner, own in words.items():
            read = await read_all(provider, owner)
            others = [word for other, theirs in words.items() if other != owner for word in theirs]
            assert [read.count(word) for word in own] == [3, 3], "by each of three ways"
            assert not [word for word in others if word in read]
        assert "password" not in await read_all(provider, "telegram:3")


async def test_profiles_share_no_memories(server: FakeHindsight) -> None:
    async with hindsight(server, profile="work") as work, hindsight(server, profile="home") as home:
        await ProviderSession(work, "s1", ANN).say("my password is larkspur")
        assert "larkspur" in await read_all(work, ANN)
        assert "larkspur" not in await read_all(home, ANN)


async def test_forgetting_an_owner_leaves_the_others(server: FakeHindsight) -> None:
    async with hindsight(server) as provider:
        for owner, word in ((ANN, "larkspur"), (BOB, "foxglove")):
            await ProviderSession(provider, f"s{word}", owner).say(f"my password is {word}")
        await ProviderSession(provider, "s", ANN).forget(ForgetScope.OWNER)
        assert "larkspur" not in await read_all(provider, ANN)
        assert "foxglove" in await read_all(provider, BOB)
    assert server.texts(BANK) == []


async def test_a_turn_whose_response_was_lost_is_stored_once(server: FakeHindsight) -> None:
    async with hindsight(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        server.lose_next()
        with pytest.raises(Unavailable):
            await session.say("I keep bees")
        for attempt in (2, 3):
            await session.again(1, attempt=attempt)
    assert (server.ingested, len(server.operations)) == (1, 1)
    assert list(server.banks[BANK]) == ["s1/0001"]


async def test_a_turn_counts_as_delivered_only_once_it_is_ingested(server: FakeHindsight) -> None:
    async with hindsight(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        server.fail_ingestion()
        with pytest.raises(ProviderError, match="could not ingest"):
            await session.say("I keep bees")
        assert server.banks == {}


@pytest.mark.parametrize("status", [500, 503])
async def test_an_error_of_the_server_is_never_a_success(server: FakeHindsight, status: int) -> None:
    async with hindsight(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("I keep bees")
        await session.note("keeps bees", version=1)
        for scope, words in ((ForgetScope.FACT, "bees"), (ForgetScope.SESSION, ""), (ForgetScope.OWNER, "")):
            server.fail_next(10, status)
            with pytest.raises(Unavailable):
                await session.forget(scope, words)
            with pytest.raises(Unavailable):
                await session.recall("bees")
            with pytest.raises(Unavailable):
                await session.undo(1)
            with pytest.raises(Unavailable):
                await session.say("I sell honey")
            server.heal()
            assert server.texts(BANK)


@pytest.mark.parametrize("failing", range(0, 12))
@pytest.mark.parametrize("scope", [ForgetScope.FACT, ForgetScope.SESSION, ForgetScope.OWNER])
async def test_a_forget_that_returns_has_deleted_everything(
    server: FakeHindsight, scope: ForgetScope, failing: int
) -> None:
    """Whichever request fails, either the forget fails too or the words are gone."""
    async with hindsight(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("my password is larkspur, and I keep bees")
        await session.note("larkspur", version=1)
        server.fail_ingestion()
        with pytest.raises(ProviderError):
            await session.say("larkspur again")
        assert sum("larkspur" in text for text in server.texts(BANK)) == 5
        server.fail_next(after=failing)
        try:
            await session.forget(scope, "larkspur", "n1")
        except Unavailable:
            await session.forget(scope, "larkspur", "n1")
        assert not [text for text in server.texts(BANK) if "larkspur" in text]
