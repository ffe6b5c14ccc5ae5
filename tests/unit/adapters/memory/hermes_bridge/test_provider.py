"""The provider for Hermes memory plugins, each in its own process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.hermes_plugins import Diaries, bridge, child_of, ref, say
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, opened, until

from everthread.adapters.memory.hermes_bridge.provider import HermesBridge
from everthread.domain.boundary import Branch, New, Resume
from everthread.domain.errors import Rejected, ToolFailed
from everthread.memory.delivery_results import Limits

pytestmark = pytest.mark.timeout(60)


LIMITS = Limits(attempt_s_max=2.0, backoff_s=0.02, backoff_s_max=0.2, breaker_s=0.1)


@pytest.fixture
def diaries(tmp_path: Path) -> Diaries:
    return Diaries(tmp_path / "bridge")


async def test_the_output_of_a_plugin_goes_to_its_log(diaries: Diaries) -> None:
    async with bridge(diaries, "old") as found:
        for seq in range(1, 4):
            await say(found, f"word {seq}", seq=seq)
    log = diaries.folder / "plugin-ann.log"
    assert "old memory starts" in log.read_text()
    assert "nonsense" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_an_agents_turn_reaches_the_plugins_notice_hooks(tmp_path: Path, diaries: Diaries) -> None:
    provider = HermesBridge("diary")
    settings = {provider.name: diaries.settings | {"owner": ME}}
    async with AgentFixture(tmp_path, FakeModel(["well met"]), provider, settings=settings) as core:
        ended = await core.ask("hello")
        log = diaries.folder / f"plugin-{ME}.log"
        expected = ("turn 1 begins", f"prefetch 'hello' in {ended.committed.ref.session_id}")
        await until(lambda: log.exists() and all(line in log.read_text() for line in expected))


async def test_only_the_owner_is_served_by_default(diaries: Diaries) -> None:
    async with bridge(diaries, people="one") as found:
        await say(found, "the password is larkspur")
        with pytest.raises(Rejected, match=r'ann\'s alone.*memory.hermes.people = "each"'):
            await say(found, "hello", "s2", owner="bob")
        assert await found.prefetch("password", ref=ref("s2", "bob"), limit=5) == ()
        assert await found.system_prompt_block(ref=ref("s2", "bob")) == ""
        with pytest.raises(ToolFailed, match="ann's alone"):
            await found.handle_tool_call("diary_search", {"query": "password"}, ref=ref("s2", "bob"))
    assert {line["user"] for line in diaries.lines()} == {"ann"}


async def test_each_user_has_a_process_and_a_home_within_a_limit(diaries: Diaries) -> None:
    people = [f"person{n}" for n in range(5)]
    async with bridge(diaries) as found:
        for person in people:
            await say(found, f"I am {person}", f"s-{person}", owner=person)
            assert len(found._users) <= 4  # noqa: SLF001
        for person in people:
            items = await found.prefetch("am", ref=ref(f"s-{person}", person), limit=9)
            assert [item.text for item in items] == [f"I am {person} I see."]
    assert len(list(diaries.folder.glob("people/*/diary.jsonl"))) == 5


def core(folder: Path, diaries: Diaries) -> CoreFixture:
    settings = {"hermes:diary": diaries.settings | {"owner": ME}}
    return CoreFixture(folder, HermesBridge("diary"), limits=LIMITS, settings=settings)


async def test_a_killed_plugin_gets_its_buffered_entries_again(tmp_path: Path, diaries: Diaries) -> None:
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
    assert [text.split()[0] for text in diaries.delivered(old)] == ["apple", "birch", "cedar", "elder"]
    assert [text.split()[0] for text in diaries.delivered(new)] == ["damson"]
    assert len(diaries.delivered(old, "close")) == 2


async def test_nothing_is_redelivered_after_an_orderly_stop(tmp_path: Path, diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    async with core(tmp_path, diaries) as home:
        session = (await home.turn(CLI, "apple")).ref.session_id
        await home.settled()
    async with core(tmp_path, diaries) as home:
        home.clock.ahead_s = 3600
        await home.turn(CLI, "birch")
        child = opened(await home.cross(CLI, Branch()))
        await home.settled()
    assert [text.split()[0] for text in diaries.delivered(session)] == ["apple", "birch"]
    assert diaries.delivered(child, "opened") == [session]


async def test_two_concurrent_users_never_mix(tmp_path: Path, diaries: Diaries) -> None:
    async with core(tmp_path, diaries) as home:
        for number in range(3):
            await home.turn(CLI, f"larkspur{number}")
            await home.turn(TELEGRAM, f"foxglove{number}", owner="bob")
        await home.settled()
    assert {(line["user"], line["text"].split()[0][:8]) for line in diaries.lines() if line["kind"] == "turn"} == {
        (ME, "larkspur"),
        ("bob", "foxglove"),
    }
