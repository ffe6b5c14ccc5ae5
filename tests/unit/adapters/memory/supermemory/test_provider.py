"""The Supermemory provider against a fake service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.supermemory import FakeSupermemory

from everthread.adapters.memory.supermemory.codec import namespace
from everthread.adapters.memory.supermemory.provider import Supermemory
from everthread.domain.errors import Rejected, ToolFailed, Unavailable
from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import ChatType, Message, Role, SessionKey, SessionRef, Turn, TurnStatus

ANN, BOB = "telegram:1 ann", "telegram:1-ann"


def ref(session: str, owner: str = ANN) -> SessionRef:
    return SessionRef(session, 0, SessionKey("main", "telegram", ChatType.DM, owner), 1, owner)


def nth(seq: int, session: str = "s1") -> Delivery:
    return Delivery(f"{session}:{seq}:supermemory:0", seq)


def turn(number: int, text: str, *, inherited: bool = False) -> Turn:
    messages = (Message(Role.USER, text), Message(Role.ASSISTANT, "I see."))
    return Turn("s1", number, f"t{number}", TurnStatus.DONE, 1.0, messages, inherited)


@asynccontextmanager
async def supermemory(fake: FakeSupermemory, **settings: Any) -> AsyncIterator[Supermemory]:
    provider = Supermemory()
    await provider.initialize(**{"url": fake.address, "namespace": "everthread", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def say(provider: Supermemory, text: str, number: int = 1, session: str = "s1", owner: str = ANN) -> None:
    delivery = nth(number, session)
    await provider.sync_turn(text, "I see.", ref=ref(session, owner), delivery=delivery, turn=number, at=1.0)


async def note(provider: Supermemory, content: str, seq: int, action: str = "add", session: str = "s1") -> None:
    about = {"note_id": "n1"}
    await provider.on_memory_write(action, "user", content, about, ref=ref(session), delivery=nth(seq, session))


async def close(provider: Supermemory, *turns: Turn) -> None:
    await provider.on_session_end([], ref=ref("s1"), delivery=nth(9), view=View(None, turns), through_seq=8)


def given(fake: FakeSupermemory, owner: str = ANN) -> list[str]:
    return [one["given"] for one in fake.spaces.get(namespace("everthread", owner), {}).values()]


async def test_a_changed_text_replaces_the_document() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            await note(provider, "has seven hives", 1)
            await note(provider, "has eight hives", 2, "replace", "notes:ann")
            assert given(fake) == ["noted: has eight hives"]
            await note(provider, "", 3, "remove")
            await note(provider, "", 3, "remove")
        assert given(fake) == []


async def test_a_url_in_a_message_is_not_fetched() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            await say(provider, "https://example.com/secret")
        assert not given(fake)[0].startswith("http")


async def test_a_document_that_failed_is_sent_again_at_the_close() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            fake.spoil_next()
            await say(provider, "I keep bees")
            assert not await provider.prefetch("bees", ref=ref("s1"), limit=3)
            await close(provider, turn(1, "I keep bees"))
            [item] = await provider.prefetch("bees", ref=ref("s2"), limit=3)
        assert (item.session_id, item.turn, item.at) == ("s1", 1, 1.0)


async def test_a_document_that_fails_twice_is_rejected() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            fake.spoil_next(2)
            await say(provider, "I keep bees")
            with pytest.raises(Rejected, match="twice"):
                await close(provider, turn(1, "I keep bees"))
            await close(provider, turn(1, "I keep bees"))


async def test_a_close_sends_missing_turns_except_inherited_ones() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            await close(provider, turn(1, "said in the parent", inherited=True), turn(2, "I keep bees"))
        assert given(fake) == ["user: I keep bees\nassistant: I see."]


async def test_a_stuck_queue_delays_a_close_only_briefly() -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    with FakeSupermemory(takes_in_s=600) as fake:
        provider = Supermemory(sleep=sleep)
        await provider.initialize(url=fake.address, namespace="everthread")
        await say(provider, "I keep bees")
        await close(provider, turn(1, "I keep bees"))
        assert sum(naps) == 20
        # Forgetting a fact fails until all documents could be searched.
        with pytest.raises(Unavailable, match="could not be searched"):
            await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(3), text="4711")
        await provider.shutdown()


async def test_a_forgotten_fact_leaves_the_documents_and_the_rest_stays() -> None:
    with FakeSupermemory(takes_in_s=0.05) as fake:
        async with supermemory(fake) as provider:
            await say(provider, "the code is 4711, mind")
            await say(provider, "I keep bees", 2)
            fake.spoil_next()
            await say(provider, "again: 4711", 3)
            await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(4), text="4711")
        words = " ".join(given(fake))
        assert "4711" not in words
        assert "the code is [forgotten], mind" in words
        assert "bees" in words


async def test_undone_turns_are_deleted() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            await say(provider, "I keep bees")
            await say(provider, "I keep wasps", 2)
            await provider.on_session_switch("s1", ref=ref("s1"), delivery=nth(3), rewound=True, turns=(2, 3))
        assert "wasps" not in " ".join(given(fake))
        assert len(given(fake)) == 1


async def test_more_documents_than_fit_on_a_page_are_forgotten_with_their_session() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            for number in range(1, 131):
                await say(provider, f"turn {number}", number)
            await say(provider, "stays", 1, "s2")
            await provider.forget(ForgetScope.SESSION, ref=ref("s1"), delivery=nth(200))
        assert given(fake) == ["user: stays\nassistant: I see."]


async def test_tools_act_on_the_owner_of_the_turn() -> None:
    with FakeSupermemory() as fake:
        async with supermemory(fake) as provider:
            await say(provider, "I keep bees")
            await note(provider, "has seven hives", 2)
            await say(provider, "I keep wasps", session="s2", owner=BOB)
            found = await provider.handle_tool_call("supermemory_search", {"query": "keep"}, ref=ref("any"))
            assert "bees" in found
            assert "wasps" not in found
            assert "seven" in await provider.handle_tool_call("supermemory_profile", {}, ref=ref("any"))
            nothing = await provider.handle_tool_call("supermemory_profile", {}, ref=ref("any", BOB))
            assert nothing == "Nothing is known yet."
            with pytest.raises(ToolFailed):
                await provider.handle_tool_call("supermemory_search", {"query": " "}, ref=ref("any"))
            with pytest.raises(LookupError):
                await provider.handle_tool_call("supermemory_delete", {}, ref=ref("any"))


async def test_errors_name_the_problem_and_never_the_key() -> None:
    with FakeSupermemory(key="k-secret-1234") as fake:
        async with supermemory(fake, api_key="k-secret-1234") as provider:
            assert await provider.health() == "ok"
        async with supermemory(fake, api_key="k-wrong-9999") as provider:
            said = await provider.health()
            assert "401" in said
            assert "k-wrong" not in said
