"""Memory plugins in the shape of Hermes Agent's, each in a process of its own: what they do, and what we do then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.hermes_plugins import Diaries
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, opened, until

from everthread.adapters.memory.hermes_bridge.child_process import DISCONNECT_S_MAX, PluginProcess
from everthread.adapters.memory.hermes_bridge.provider import HermesBridge
from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.errors import BadConfig, Rejected, StartOver, ToolFailed, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Message, Role, SessionKey, SessionRef
from everthread.memory.delivery import Limits

pytestmark = pytest.mark.timeout(60)
LIMITS = Limits(attempt_s_max=2.0, backoff_s=0.02, backoff_s_max=0.2, breaker_s=0.1)


@pytest.fixture
def diaries(tmp_path: Path) -> Diaries:
    return Diaries(tmp_path / "bridge")


def ref(session: str, owner: str = "ann", key: SessionKey = CLI) -> SessionRef:
    return SessionRef(session, 0, key, 1, owner)


def nth(session: str, seq: int, attempt: int = 1) -> Delivery:
    return Delivery(f"{session}:{seq}:hermes:0", seq, attempt)


@contextlib.asynccontextmanager
async def bridge(diaries: Diaries, plugin: str = "diary", **settings: Any) -> AsyncGenerator[HermesBridge, None]:
    found = HermesBridge(plugin)
    try:
        await found.initialize(**(diaries.settings | settings))
        yield found
    finally:
        await found.shutdown()


def say(found: HermesBridge, words: str, session: str = "s1", seq: int = 1, owner: str = "ann") -> Awaitable[None]:
    messages = (Message(Role.USER, words), Message(Role.ASSISTANT, "I see."))
    return found.sync_turn(words, "I see.", ref=ref(session, owner), delivery=nth(session, seq), messages=messages)


def close(found: HermesBridge, session: str = "s1", seq: int = 9) -> Awaitable[None]:
    return found.on_session_end([Message(Role.USER, "all of it")], ref=ref(session), delivery=nth(session, seq))


def child_of(found: HermesBridge, owner: str = "ann") -> int:
    """The number of the process that a person's plugin runs in."""
    child = found._users[owner]._child  # noqa: SLF001 - nobody else wants to know
    assert child is not None
    return child._process.pid  # noqa: SLF001


def is_running(pid: int) -> bool:
    """A process that has ended and was not waited for has no program any more."""
    return Path(f"/proc/{pid}/exe").exists()


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


# Old and odd ones -----------------------------------------------------------------------------------------------------


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


async def test_what_a_plugin_prints_goes_to_a_log_and_disturbs_nothing(diaries: Diaries) -> None:
    async with bridge(diaries, "old") as found:
        for seq in range(1, 4):
            await say(found, f"word {seq}", seq=seq)
    log = diaries.folder / "plugin-ann.log"
    assert "old memory starts" in log.read_text()
    assert "nonsense" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_plugin_that_is_not_there_is_named_with_those_that_are(diaries: Diaries) -> None:
    with pytest.raises(Unavailable, match=r"no memory plugin 'nosuch'.*diary.*old"):
        async with bridge(diaries, "nosuch"):
            pass


async def test_a_plugin_that_is_not_set_up_says_where_its_settings_belong(diaries: Diaries) -> None:
    diaries.ways.set(unset=True)
    with pytest.raises(Unavailable, match=r"not configured.*config.yaml and .env.*everthread memory bridge test"):
        async with bridge(diaries):
            pass


async def test_an_interpreter_that_is_not_there_is_said_with_what_to_do(diaries: Diaries) -> None:
    with pytest.raises(BadConfig, match=r"can't be started.*everthread setup memory"):
        async with bridge(diaries, python="/nowhere/python"):
            pass


async def test_no_variable_of_ours_reaches_a_plugin(diaries: Diaries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "larkspur")
    async with bridge(diaries) as found:
        environment = environment_of(child_of(found))
    assert b"HERMES_HOME=" in environment
    assert b"larkspur" not in environment


# Sessions -------------------------------------------------------------------------------------------------------------


async def test_every_hook_arrives_in_the_instance_of_its_own_session(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        for seq, session in enumerate(("s1", "s2", "s1", "s3", "s2", "s1"), start=1):
            await say(found, f"word{seq}", session, seq)
        await found.on_memory_write("add", "user", "a note", {}, ref=ref("s2"), delivery=nth("s2", 20))
        await found.on_delegation("count", "seven", ref=ref("s3"), delivery=nth("s3", 21), child_session_id="c")
        answers = await asyncio.gather(
            *(found.handle_tool_call("diary_search", {"query": "word1"}, ref=ref(s)) for s in ("s1", "s2", "s3"))
        )
    assert diaries.told("s1") == ["word1 I see.", "word3 I see.", "word6 I see."]
    assert diaries.told("s2") == ["word2 I see.", "word5 I see."]
    assert diaries.told("s2", "note") == ["a note"]
    assert diaries.told("s3", "delegation") == ["count seven"]
    assert [f'"session": "s{n}"' in answer for n, answer in enumerate(answers, start=1)] == [True] * 3


async def test_more_sessions_than_there_is_room_for_lose_nothing_that_was_held_back(diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    sessions = [f"s{n:02}" for n in range(12)]
    async with bridge(diaries) as found:
        for session in sessions:
            await say(found, f"said in {session}", session)
        # Some were let go for others, and wrote down what they held.
        assert diaries.told("s00") == ["said in s00 I see."]
        assert diaries.told("s11") == []
    assert [diaries.told(session) for session in sessions] == [[f"said in {session} I see."] for session in sessions]


async def test_a_session_that_goes_on_after_its_close_is_closed_again(diaries: Diaries) -> None:
    """Some plugins end a session only once in the life of an instance."""
    diaries.ways.set(holds=True, closes_once=True)
    async with bridge(diaries) as found:
        await say(found, "one", seq=1)
        await close(found, seq=2)
        await say(found, "two", seq=3)
        await close(found, seq=4)
    assert diaries.told("s1") == ["one I see.", "two I see."]
    assert len(diaries.told("s1", "close")) == 2


async def test_turns_are_counted_for_the_plugin(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        for _ in range(2):
            await found.on_turn_start("hello", ref=ref("s1"))
        await found.on_turn_start("hello", ref=ref("s2"))
    printed = (diaries.folder / "plugin-ann.log").read_text()
    assert (printed.count("turn 1 begins"), printed.count("turn 2 begins")) == (2, 1)


async def test_an_agents_turn_reaches_the_plugins_notice_hooks(tmp_path: Path, diaries: Diaries) -> None:
    provider = HermesBridge("diary")
    settings = {provider.name: diaries.settings | {"owner": ME}}
    async with AgentFixture(tmp_path, FakeModel(["well met"]), provider, settings=settings) as core:
        ended = await core.ask("hello")
        log = diaries.folder / f"plugin-{ME}.log"
        expected = ("turn 1 begins", f"prefetch 'hello' in {ended.committed.ref.session_id}")
        await until(lambda: log.exists() and all(line in log.read_text() for line in expected))


# People ---------------------------------------------------------------------------------------------------------------


async def test_only_its_owner_is_served_unless_the_settings_say_otherwise(diaries: Diaries) -> None:
    async with bridge(diaries, people="one") as found:
        await say(found, "the password is larkspur")
        with pytest.raises(Rejected, match=r'ann\'s alone.*memory.hermes.people = "each"'):
            await say(found, "hello", "s2", owner="bob")
        assert await found.prefetch("password", ref=ref("s2", "bob"), limit=5) == ()
        assert await found.system_prompt_block(ref=ref("s2", "bob")) == ""
        with pytest.raises(ToolFailed, match="ann's alone"):
            await found.handle_tool_call("diary_search", {"query": "password"}, ref=ref("s2", "bob"))
    assert {line["user"] for line in diaries.lines()} == {"ann"}


async def test_each_person_has_a_process_and_a_home_and_there_are_not_too_many(diaries: Diaries) -> None:
    people = [f"person{n}" for n in range(5)]
    async with bridge(diaries) as found:
        for person in people:
            await say(found, f"I am {person}", f"s-{person}", owner=person)
            assert len(found._users) <= 4  # noqa: SLF001
        for person in people:
            items = await found.prefetch("am", ref=ref(f"s-{person}", person), limit=9)
            assert [item.text for item in items] == [f"I am {person} I see."]
    assert len(list(diaries.folder.glob("people/*/diary.jsonl"))) == 5


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["in_thread", "in_queue"])
async def test_what_a_plugin_hands_to_a_thread_is_waited_for(diaries: Diaries, way: str) -> None:
    diaries.ways.set(**{way: True}, slow_s=0.2)
    async with bridge(diaries) as found:
        for seq in range(1, 4):
            await say(found, f"word{seq}", seq=seq)
            assert len(diaries.told("s1")) == seq


@pytest.mark.parametrize("way", ["in_thread", "in_queue"])
async def test_what_goes_wrong_in_a_thread_and_is_only_logged_counts_as_failed(diaries: Diaries, way: str) -> None:
    diaries.ways.set(**{way: True})
    async with bridge(diaries) as found:
        await say(found, "one")
        diaries.ways.fail_next()
        with pytest.raises(Unavailable, match="Diary sync failed: nobody there"):
            await say(found, "two", seq=2)
        await say(found, "two", seq=2)
        await say(found, "three", seq=3)
    assert diaries.told("s1") == ["one I see.", "two I see.", "three I see."]


async def test_a_plugin_that_starts_without_its_server_is_told_nothing_that_it_would_drop(diaries: Diaries) -> None:
    diaries.ways.set(down=True)
    async with bridge(diaries) as found:
        with pytest.raises(Unavailable, match="memory disabled for this run"):
            await say(found, "one")
        diaries.ways.heal()
        await say(found, "one")
    assert diaries.told("s1") == ["one I see."]


# Hangs and deaths -----------------------------------------------------------------------------------------------------


async def test_a_plugin_that_hangs_is_killed_with_all_it_has_started(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        await say(found, "one")
        first = child_of(found)
        diaries.ways.hang()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await say(found, "two", "s2")
        await until(lambda: not is_running(first), "it is gone")
        diaries.ways.heal()
        await again(lambda: say(found, "two", "s2"))
        assert child_of(found) != first
    assert diaries.told("s2") == ["two I see."]


async def test_a_delivery_that_ends_well_just_after_it_was_given_up_is_not_told_twice(diaries: Diaries) -> None:
    diaries.ways.set(in_thread=True, slow_s=0.4)
    async with bridge(diaries) as found:
        first = child_of(found)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await say(found, "one")
        await say(found, "one")
        assert child_of(found) == first
    assert diaries.told("s1") == ["one I see."]


async def test_a_process_that_closes_its_connection_and_lives_on_is_ended_at_once(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport os, sys, time\nos.close(int(sys.argv[2]))\ntime.sleep(300)\n")
    python.chmod(0o700)
    child = await PluginProcess.start("hermes:diary", python, tmp_path, tmp_path / "log")
    with pytest.raises(Unavailable, match="closed its connection"):
        async with asyncio.timeout(DISCONNECT_S_MAX + 5):
            await child.request("hello", {}, 60.0)
    assert not child.is_alive
    await child.aclose()


async def test_a_plugin_that_crashes_is_started_again_after_a_pause(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        with pytest.raises(Unavailable, match=r"ended \(exit code 3\)"):
            await say(found, "crash")
        with pytest.raises(Unavailable, match="restarts in"):
            await say(found, "two", "s2")
        await again(lambda: say(found, "two", "s2"))
    assert diaries.told("s2") == ["two I see."]


async def test_what_a_dead_process_had_acknowledged_is_asked_for_again_from_its_first_entry(diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    async with bridge(diaries) as found:
        await say(found, "zero", seq=1)
        await close(found, seq=2)
        await say(found, "one", seq=3)
        await say(found, "two", seq=4)
        os.kill(child_of(found), signal.SIGKILL)
        with pytest.raises(StartOver) as asked:
            await again(lambda: say(found, "three", seq=5))
        assert asked.value.seq == 3
        for seq, word in ((3, "one"), (4, "two"), (5, "three")):
            await say(found, word, seq=seq)
        await close(found, seq=6)
    assert diaries.told("s1") == ["zero I see.", "one I see.", "two I see.", "three I see."]


async def test_recall_that_hangs_keeps_nobody_waiting_and_leaves_the_rest_alone(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        await say(found, "I keep bees")
        first = child_of(found)
        diaries.ways.hang()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await found.prefetch("bees", ref=ref("s2"), limit=5)
        diaries.ways.heal()
        await say(found, "two", "s3")
        assert child_of(found) == first


async def test_the_child_ends_with_its_parent(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        child = found._users["ann"]._child  # noqa: SLF001
        assert child is not None
        pid = child_of(found)
        assert child._writer is not None  # noqa: SLF001
        child._writer.close()  # noqa: SLF001 - as the end of this process would do
        await until(lambda: not is_running(pid), "it is gone")


async def again(act: Any) -> None:
    """As the journal does: until it is taken, or asks for more than that."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return await act()
        except StartOver:
            raise
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


# With the journal -----------------------------------------------------------------------------------------------------


def core(folder: Path, diaries: Diaries) -> CoreFixture:
    settings = {"hermes:diary": diaries.settings | {"owner": ME}}
    return CoreFixture(folder, HermesBridge("diary"), limits=LIMITS, settings=settings)


async def test_a_killed_plugin_that_held_everything_back_has_it_all_in_the_end(
    tmp_path: Path, diaries: Diaries
) -> None:
    """The cursors go back to what the dead process had acknowledged since the last close."""
    diaries.ways.set(holds=True)
    async with core(tmp_path, diaries) as home:
        old = (await home.turn(CLI, "apple")).ref.session_id
        await home.turn(CLI, "birch")
        await home.settled()
        [bridge_] = [caller.provider for caller in home.memory._callers.values()]  # noqa: SLF001
        assert isinstance(bridge_, HermesBridge)
        os.kill(child_of(bridge_, ME), signal.SIGKILL)
        await home.turn(CLI, "cedar")
        new = opened(await home.cross(CLI, New()))
        await home.turn(CLI, "damson")
        await home.settled()
        assert opened(await home.cross(CLI, Resume(old))) == old
        await home.turn(CLI, "elder")
        await home.cross(CLI, New())
        await home.settled()
    assert [text.split()[0] for text in diaries.told(old)] == ["apple", "birch", "cedar", "elder"]
    assert [text.split()[0] for text in diaries.told(new)] == ["damson"]
    assert len(diaries.told(old, "close")) == 2


async def test_a_process_that_stops_in_good_order_has_nothing_told_again(tmp_path: Path, diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    async with core(tmp_path, diaries) as home:
        session = (await home.turn(CLI, "apple")).ref.session_id
        await home.settled()
    async with core(tmp_path, diaries) as home:
        home.clock.ahead_s = 3600
        await home.turn(CLI, "birch")
        child = opened(await home.cross(CLI, Branch()))
        await home.settled()
    assert [text.split()[0] for text in diaries.told(session)] == ["apple", "birch"]
    assert diaries.told(child, "opened") == [session]


async def test_two_people_at_once_never_mix(tmp_path: Path, diaries: Diaries) -> None:
    async with core(tmp_path, diaries) as home:
        for number in range(3):
            await home.turn(CLI, f"larkspur{number}")
            await home.turn(TELEGRAM, f"foxglove{number}", owner="bob")
        await home.settled()
    assert {(line["user"], line["text"].split()[0][:8]) for line in diaries.lines() if line["kind"] == "turn"} == {
        (ME, "larkspur"),
        ("bob", "foxglove"),
    }
