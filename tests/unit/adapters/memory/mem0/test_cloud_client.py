"""The Mem0 provider with the cloud client, against a fake service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.mem0 import FakeMem0
from tests.mem0_entries import stored_entries

from everthread.adapters.memory.mem0.provider import Mem0
from everthread.domain.errors import BadConfig, Rejected, ToolFailed, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import ChatType, SessionKey, SessionRef


def ref(session: str = "s1", owner: str = "ann") -> SessionRef:
    return SessionRef(session, 0, SessionKey("main", "telegram", ChatType.DM, owner), 1, owner)


def nth(seq: int, attempt: int = 1) -> Delivery:
    return Delivery(f"s1:{seq}:mem0:0", seq, attempt)


@asynccontextmanager
async def on(fake: FakeMem0, **settings: Any) -> AsyncIterator[Mem0]:
    provider = Mem0()
    await provider.initialize(**{"mode": "platform", "url": fake.address, "api_key": "k-1234", **settings})
    try:
        yield provider
    finally:
        await provider.shutdown()


async def test_an_entry_that_the_cloud_fails_to_process_is_retried_and_rejected_in_the_end() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:
            for attempt, error in ((1, Unavailable), (2, Unavailable), (3, Rejected)):
                fake.spoil_next()
                with pytest.raises(error, match="could not carry it out"):
                    await provider.sync_turn("I keep bees", "", ref=ref(), delivery=nth(1, attempt), turn=1)
            assert fake.memories == []
            await provider.sync_turn("I keep bees", "", ref=ref(), delivery=nth(1, 4), turn=1)
        assert [one.text for one in stored_entries(fake.memories)] == ["I keep bees"]


async def test_duplicates_of_a_late_request_are_recalled_once_and_removed_by_the_next_close() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake, infer=False) as provider:
            await provider.sync_turn("I keep bees", "", ref=ref(), delivery=nth(1), turn=1)
            # The service processed the request after the client had timed out.
            [once] = fake.memories
            late = {**once, "id": "late", "created_at": "9", "metadata": {**once["metadata"], "request": "late"}}
            fake.memories.append(late)
            assert len(await provider.prefetch("bees", ref=ref(), limit=5)) == 1
            await provider.on_session_end((), ref=ref(), delivery=nth(2))
        assert [one["id"] for one in fake.memories] == [once["id"]]


async def test_a_note_that_comes_late_does_not_replace_a_newer_one() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:

            async def note(content: str, version: int, action: str = "replace") -> list[str]:
                about = {"note_id": "n1", "version": version}
                await provider.on_memory_write(action, "user", content, about, ref=ref(), delivery=nth(version))
                return [one["memory"] for one in fake.memories]

            assert await note("keeps seven hives", 3) == ["keeps seven hives"]
            assert await note("keeps two hives", 2) == ["keeps seven hives"]
            assert await note("keeps nine hives", 4) == ["keeps nine hives"]
            assert await note("", 5, "remove") == []


async def test_a_forgotten_text_is_removed_and_the_rest_stays() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:
            await provider.sync_turn("the code is 4711 and I keep bees", "", ref=ref(), delivery=nth(1), turn=1)
            await provider.sync_turn("the code is 4711", "", ref=ref(), delivery=nth(2), turn=2)
            await provider.forget(ForgetScope.FACT, ref=ref(), delivery=nth(3), text="the code is 4711")
        assert [one["memory"] for one in fake.memories] == ["[forgotten] and I keep bees"]


async def test_all_pages_are_read() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:
            text = "\n".join(f"fact number {n}" for n in range(250))
            await provider.sync_turn(text, "", ref=ref(), delivery=nth(1), turn=1)
            assert len(fake.memories) == 250
            await provider.on_session_switch("s1", ref=ref(), delivery=nth(2), rewound=True, turns=(1,))
        assert fake.memories == []


async def test_tools_act_on_the_owner_and_refuse_an_empty_argument() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:
            assert await provider.handle_tool_call("mem0_profile", {}, ref=ref()) == "Nothing is known yet."
            await provider.sync_turn("I keep bees", "", ref=ref(), delivery=nth(1), turn=1)
            await provider.on_session_switch("s1", parent_session_id="s0", ref=ref(), delivery=nth(2))
            assert await provider.handle_tool_call("mem0_profile", {}, ref=ref()) == "- I keep bees"
            assert await provider.handle_tool_call("mem0_search", {"query": "bees"}, ref=ref()) == "- I keep bees"
            others = ref("s2", "bob")
            assert await provider.handle_tool_call("mem0_search", {"query": "bees"}, ref=others) == "Nothing was found."
            with pytest.raises(ToolFailed):
                await provider.handle_tool_call("mem0_search", {"query": " "}, ref=ref())
            with pytest.raises(LookupError):
                await provider.handle_tool_call("mem0_sing", {}, ref=ref())


async def test_health_and_invalid_settings_are_reported() -> None:
    with FakeMem0(key="k-1234") as fake:
        async with on(fake) as provider:
            assert await provider.health() == "ok"
            fake.fail_next()
            assert "503" in await provider.health()
        async with on(fake, api_key="k-wrong") as provider:
            assert "does not accept the key" in await provider.health()
    with pytest.raises(BadConfig, match="MEM0_API_KEY"):
        await Mem0().initialize(mode="platform", url="http://127.0.0.1:9")
    with pytest.raises(BadConfig, match="library or platform"):
        await Mem0().initialize(mode="cloud")
    with pytest.raises(Unavailable, match="shut down"):
        await Mem0().prefetch("bees", ref=ref(), limit=1)
