"""The program that runs a plugin: loading, instances of sessions, threads and logged failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.hermes_plugins import Diaries, bridge, close, nth, ref, say

from everthread.domain.errors import Unavailable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def diaries(tmp_path: Path) -> Diaries:
    return Diaries(tmp_path / "bridge")


async def test_an_old_plugin_with_few_hooks_and_arguments_works(diaries: Diaries) -> None:
    async with bridge(diaries, "old") as found:
        await found.on_session_switch("s1", parent_session_id="s0", ref=ref("s1"), delivery=nth("s1", 1))
        await say(found, "I keep bees", seq=2)
        await found.on_memory_write("add", "user", "a note", {}, ref=ref("s1"), delivery=nth("s1", 3))
        await close(found, seq=4)
        await say(found, "I paint hives", "s2")
        assert await found.on_pre_compress([], ref=ref("s1")) == ""
        items = await found.prefetch("bees", ref=ref("s2"), limit=5)
        assert [item.text for item in items] == ["s1 I keep bees"]
        assert found.get_tool_schemas() == ()
    assert (diaries.folder / "home" / "old.txt").read_text() == "s1 I keep bees\ns2 I paint hives\n"


async def test_an_unknown_plugin_is_reported_with_the_available_ones(diaries: Diaries) -> None:
    with pytest.raises(Unavailable, match=r"no memory plugin 'nosuch'.*diary.*old"):
        async with bridge(diaries, "nosuch"):
            pass


async def test_every_hook_arrives_in_the_instance_of_its_own_session(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        for seq, session in enumerate(("s1", "s2", "s1", "s3", "s2", "s1"), start=1):
            await say(found, f"word{seq}", session, seq)
        await found.on_memory_write("add", "user", "a note", {}, ref=ref("s2"), delivery=nth("s2", 20))
        await found.on_delegation("count", "seven", ref=ref("s3"), delivery=nth("s3", 21), child_session_id="c")
        answers = await asyncio.gather(
            *(found.handle_tool_call("diary_search", {"query": "word1"}, ref=ref(s)) for s in ("s1", "s2", "s3"))
        )
    assert diaries.delivered("s1") == ["word1 I see.", "word3 I see.", "word6 I see."]
    assert diaries.delivered("s2") == ["word2 I see.", "word5 I see."]
    assert diaries.delivered("s2", "note") == ["a note"]
    assert diaries.delivered("s3", "delegation") == ["count seven"]
    assert [f'"session": "s{n}"' in answer for n, answer in enumerate(answers, start=1)] == [True] * 3


async def test_evicted_sessions_lose_no_buffered_entry(diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    sessions = [f"s{n:02}" for n in range(12)]
    async with bridge(diaries) as found:
        for session in sessions:
            await say(found, f"said in {session}", session)
        # Some sessions were evicted and flushed their buffered entries.
        assert diaries.delivered("s00") == ["said in s00 I see."]
        assert diaries.delivered("s11") == []
    assert [diaries.delivered(session) for session in sessions] == [
        [f"said in {session} I see."] for session in sessions
    ]


async def test_a_session_that_continues_after_its_close_is_closed_again(diaries: Diaries) -> None:
    """Some plugins end a session only once in the life of an instance."""
    diaries.ways.set(holds=True, closes_once=True)
    async with bridge(diaries) as found:
        await say(found, "one", seq=1)
        await close(found, seq=2)
        await say(found, "two", seq=3)
        await close(found, seq=4)
    assert diaries.delivered("s1") == ["one I see.", "two I see."]
    assert len(diaries.delivered("s1", "close")) == 2


async def test_turns_are_counted_for_the_plugin(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        for _ in range(2):
            await found.on_turn_start("hello", ref=ref("s1"))
        await found.on_turn_start("hello", ref=ref("s2"))
    printed = (diaries.folder / "plugin-ann.log").read_text()
    assert (printed.count("turn 1 begins"), printed.count("turn 2 begins")) == (2, 1)


@pytest.mark.parametrize("way", ["in_thread", "in_queue"])
async def test_threads_that_a_plugin_starts_are_awaited(diaries: Diaries, way: str) -> None:
    diaries.ways.set(**{way: True}, slow_s=0.2)
    async with bridge(diaries) as found:
        for seq in range(1, 4):
            await say(found, f"word{seq}", seq=seq)
            assert len(diaries.delivered("s1")) == seq


@pytest.mark.parametrize("way", ["in_thread", "in_queue"])
async def test_a_failure_that_a_thread_only_logs_counts_as_failed(diaries: Diaries, way: str) -> None:
    diaries.ways.set(**{way: True})
    async with bridge(diaries) as found:
        await say(found, "one")
        diaries.ways.fail_next()
        with pytest.raises(Unavailable, match="Diary sync failed: nobody there"):
            await say(found, "two", seq=2)
        await say(found, "two", seq=2)
        await say(found, "three", seq=3)
    assert diaries.delivered("s1") == ["one I see.", "two I see.", "three I see."]


async def test_a_plugin_without_its_server_gets_no_delivery_that_it_would_drop(diaries: Diaries) -> None:
    diaries.ways.set(down=True)
    async with bridge(diaries) as found:
        with pytest.raises(Unavailable, match="memory disabled for this run"):
            await say(found, "one")
        diaries.ways.heal()
        await say(found, "one")
    assert diaries.delivered("s1") == ["one I see."]
