"""The OpenViking provider against a fake server: owners, retries, order, failures and forgetting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.openviking_service import API, FakeOpenVikingService
from tests.provider_session import ProviderSession
from tests.runtime import until

from everthread.adapters.memory.openviking.provider import OpenViking
from everthread.domain.errors import ToolFailed, Unavailable
from everthread.domain.events import ForgetScope

ANN, BOB = "telegram:1", "telegram:2"
ANNS = ("everthread__main", "telegram_3a1")


@pytest.fixture
def server() -> Iterator[FakeOpenVikingService]:
    with FakeOpenVikingService() as server:
        yield server


@asynccontextmanager
async def openviking(server: FakeOpenVikingService, **settings: Any) -> AsyncIterator[OpenViking]:
    async def no_sleep(seconds: float) -> None:
        return None

    provider = OpenViking(sleep=no_sleep)
    await provider.initialize(**{"url": server.address, "profile": "main", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def read_all(provider: OpenViking, owner: str) -> str:
    """Everything that an owner can read in the words of the question: recalled, searched, and looked up."""
    session = ProviderSession(provider, "reading", owner)
    texts = [text for text, _, _ in await session.recall("my password is")]
    for tool, argument in (("openviking_search", "query"), ("openviking_look_up", "words")):
        texts.append(await provider.handle_tool_call(tool, {argument: "my password is"}, ref=session.ref))
    return "\n".join(texts)


async def test_an_owner_reads_only_their_own_memories(server: FakeOpenVikingService) -> None:
    words = {ANN: ("larkspur", "verbena"), BOB: ("foxglove", "yarrow")}
    async with openviking(server) as provider:
        for owner, (said, noted) in words.items():
            # Both owners have a session of this name.
            session = ProviderSession(provider, "s1", owner)
            await session.say(f"my password is {said}")
            await session.close()
            await session.note(f"my password is {noted} too", version=1)
        for owner, own in words.items():
            read = await read_all(provider, owner)
            others = [word for other, theirs in words.items() if other != owner for word in theirs]
            # Notes are no messages, so they can't be looked up.
            assert [read.count(word) for word in own] == [3, 2]
            assert not [word for word in others if word in read]
        assert "larkspur" not in await read_all(provider, "telegram:3")


@pytest.mark.parametrize("path", ["{}", "viking://user/telegram_3a2/memories/../../{}"])
async def test_a_memory_of_another_owner_is_not_read_by_its_address(server: FakeOpenVikingService, path: str) -> None:
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("my password is larkspur")
        await session.close()
        (uri,) = server.users[ANNS].memories
        read = await provider.handle_tool_call("openviking_read", {"uri": uri}, ref=session.ref)
        assert read == "my password is larkspur"
        before, bobs = len(server.requests), ProviderSession(provider, "s2", BOB)
        with pytest.raises(ToolFailed, match="not the address of a memory"):
            await provider.handle_tool_call("openviking_read", {"uri": path.format(uri)}, ref=bobs.ref)
        assert len(server.requests) == before


async def test_profiles_share_no_memories(server: FakeOpenVikingService) -> None:
    async with openviking(server, profile="work") as work, openviking(server, profile="home") as home:
        session = ProviderSession(work, "s1", ANN)
        await session.say("my password is larkspur")
        await session.close()
        assert "larkspur" in await read_all(work, ANN)
        assert "larkspur" not in await read_all(home, ANN)


async def test_forgetting_an_owner_leaves_the_others(server: FakeOpenVikingService) -> None:
    async with openviking(server) as provider:
        for owner, word in ((ANN, "larkspur"), (BOB, "foxglove")):
            session = ProviderSession(provider, "s1", owner)
            await session.say(f"my password is {word}")
            await session.close()
        await ProviderSession(provider, "s1", ANN).forget(ForgetScope.OWNER)
        assert "larkspur" not in await read_all(provider, ANN)
        assert "foxglove" in await read_all(provider, BOB)
    assert server.texts(*ANNS) == []


async def test_a_turn_whose_response_was_lost_is_stored_once(server: FakeOpenVikingService) -> None:
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        server.lose_next()
        with pytest.raises(Unavailable):
            await session.say("I keep bees")
        await session.again(1, attempt=2)
    # The process was restarted: nothing is known but what the server has.
    async with openviking(server) as provider:
        session.provider = provider
        await session.again(1, attempt=3)
        await session.close()
        await session.again(1, attempt=4)
    assert server.texts(*ANNS).count("I keep bees") == 2, "a message in the archive, and the memory from it"
    assert server.users[ANNS].stored["s1"].live == []


async def test_a_close_never_overtakes_a_turn(server: FakeOpenVikingService) -> None:
    """A request that timed out may still be under way when the close is delivered."""
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("I keep bees")
        server.hang(only_deaf=True)
        before = len(server.requests)
        late = asyncio.ensure_future(session.say("I sell honey"))
        await until(lambda: len(server.requests) > before)
        closing = asyncio.ensure_future(session.close())
        await asyncio.wait({closing}, timeout=0.2)
        server.heal()
        await asyncio.gather(late, closing)
    assert [one.path for one in server.requests].count(f"{API}/sessions/s1/commit") == 1
    (archive,) = server.users[ANNS].stored["s1"].archives
    assert [message.text for message in archive if message.role == "user"] == ["I keep bees", "I sell honey"]
    assert server.users[ANNS].stored["s1"].live == []


async def test_a_close_counts_as_delivered_only_once_memories_are_extracted(server: FakeOpenVikingService) -> None:
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("I keep bees")
        server.users[ANNS].fails_next = 1
        with pytest.raises(Unavailable, match="could not extract"):
            await session.close()
        await session.close()
        assert [text for text, _, _ in await session.recall("bees")] == ["I keep bees"]


@pytest.mark.parametrize("status", [500, 503])
async def test_an_error_of_the_server_is_never_a_success(server: FakeOpenVikingService, status: int) -> None:
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("I keep bees")
        await session.close()
        await session.say("I sell honey")
        server.fail_next(100, status)
        for entry in (
            session.forget(ForgetScope.FACT, "bees"),
            session.forget(ForgetScope.SESSION),
            session.forget(ForgetScope.OWNER),
            session.recall("bees"),
            session.note("keeps bees", version=1),
            session.undo(1),
            session.again(2, attempt=2),
            session.close(),
        ):
            with pytest.raises(Unavailable):
                await entry


@pytest.mark.parametrize("failing", range(0, 20))
@pytest.mark.parametrize("scope", [ForgetScope.FACT, ForgetScope.SESSION, ForgetScope.OWNER])
async def test_a_forget_that_returns_has_deleted_everything(
    server: FakeOpenVikingService, scope: ForgetScope, failing: int
) -> None:
    """Whichever request fails, either the forget fails too or the words are gone."""
    async with openviking(server) as provider:
        session = ProviderSession(provider, "s1", ANN)
        await session.say("my password is larkspur, and I keep bees")
        await session.close()
        await session.say("larkspur again")
        await session.note("larkspur", version=1)
        assert sum("larkspur" in text for text in server.texts(*ANNS)) == 4
        server.fail_next(after=failing)
        try:
            await session.forget(scope, "larkspur", "n1")
        except Unavailable:
            await session.forget(scope, "larkspur", "n1")
        assert not [text for text in server.texts(*ANNS) if "larkspur" in text]
