"""Sessions and notes in Honcho: missing messages, duplicates, forgetting."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.honcho import FakeHoncho
from tests.runtime import until
from tests.unit.adapters.memory.honcho.deliveries import ANN, honcho, note, nth, ref, say

from everthread.adapters.memory.honcho.codec import session_name, user_peer
from everthread.adapters.memory.honcho.provider import Honcho
from everthread.domain.errors import Unavailable
from everthread.domain.events import ForgetScope


async def test_only_missing_parts_are_sent_again() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "word " * 20_000)
            fake.messages = [one for one in fake.messages if one["metadata"]["part"] != 1]
            await say(provider, "word " * 20_000)
        parts = [one["metadata"]["part"] for one in fake.messages]
        assert sorted(parts) == sorted(set(parts))
        assert 1 in parts


async def test_stored_messages_are_checked_before_every_append() -> None:
    """A process that was killed after the request repeats it as a first attempt."""
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "I keep bees")
        async with honcho(fake) as provider:
            await say(provider, "I keep bees")
        assert len(fake.messages) == 2


async def test_duplicates_of_late_requests_are_recalled_once_and_marked_by_the_close() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await provider.on_session_switch("s1", ref=ref("s1"), delivery=nth(1))
            fake.hang(only_deaf=True)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await say(provider, "I keep bees", 2)
            fake.heal()
            await until(lambda: len(fake.messages) == 6)
            said = [item.text for item in await provider.prefetch("bees", ref=ref("s1"), limit=10)]
            assert said.count("user: I keep bees") == 1
            await provider.on_session_end([], ref=ref("s1"), delivery=nth(3), through_seq=2)
        assert [bool(one["metadata"].get("undone")) for one in fake.messages] == [False, False, True, True, True, True]


async def test_the_newest_version_of_a_note_replaces_earlier_ones_in_all_sessions() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await note(provider, "has seven hives", 1)
            await note(provider, "has eight hives", 2, action="replace")
            await note(provider, "has nine hives", 1, "notes:ann", action="replace")
            assert [one["content"] for one in fake.conclusions] == ["has nine hives"]
            await note(provider, "", 2, "notes:ann", action="remove")
        assert fake.conclusions == []


async def test_a_forgotten_fact_leaves_the_messages_and_the_rest_stays_in_order() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await provider.on_session_switch("s1", parent_session_id="s0", ref=ref("s1"), delivery=nth(1))
            for turn, text in enumerate(["I keep bees", "the code is 4711, mind", "and wasps"], 2):
                await say(provider, text, turn)
            await provider.forget(ForgetScope.FACT, ref=ref("notes:ann"), delivery=nth(1, "notes:ann"), text="4711")
            await say(provider, "and ants", 5)
        words = [one["content"] for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert words == ["I keep bees", "the code is [forgotten], mind", "and wasps", "and ants"]
        assert not [one for one in fake.conclusions if "4711" in one["content"]]
        assert list(fake.sessions) == [session_name("s1") + "__r1"]
        assert fake.sessions[session_name("s1") + "__r1"]["metadata"]["parent"] == "s0"


async def test_a_fact_is_forgotten_after_an_interrupted_attempt() -> None:
    with FakeHoncho() as fake:
        async with honcho(fake) as provider:
            await say(provider, "the code is 4711", 1)
            fake.lose_next()
            with pytest.raises(Unavailable):
                await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(2), text="4711")
            await say(provider, "I keep bees", 3)
        async with honcho(fake) as provider:
            await provider.forget(ForgetScope.FACT, ref=ref("s1"), delivery=nth(2, attempt=2), text="4711")
        words = [one["content"] for one in fake.messages if one["peer_id"] == user_peer(ANN)]
        assert words == ["the code is [forgotten]", "I keep bees"]


async def test_a_forgotten_owner_can_return_under_new_session_names() -> None:
    with FakeHoncho(deletes_s=0.3) as fake:
        async with honcho(fake) as provider:
            for round in range(3):
                await say(provider, f"round {round}", 1, "notes:ann")
                await note(provider, f"note {round}", 2, "notes:ann")
                await provider.forget(ForgetScope.OWNER, ref=ref("notes:ann"), delivery=nth(3, "notes:ann"))
                assert (fake.messages, fake.conclusions) == ([], [])
            await say(provider, "here again", 4, "notes:ann")
        assert [one["session_id"] for one in fake.messages] == [session_name("notes:ann") + "__r3"] * 2
        assert len(fake.gone) == 6


async def test_a_deletion_that_never_ends_is_unavailable() -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    with FakeHoncho(deletes_s=600) as fake:
        provider = Honcho(sleep=sleep)
        await provider.initialize(url=fake.address, workspace="everthread")
        await say(provider, "I keep bees")
        with pytest.raises(Unavailable, match="deletion"):
            await provider.forget(ForgetScope.SESSION, ref=ref("s1"), delivery=nth(2))
        await provider.shutdown()
    assert sum(naps) == pytest.approx(20, abs=0.2)
