"""Test the bridge with the real Hermes Agent and its plugin `holographic`, which stores facts in a file without a
server.

`holographic` stores notes and, at the end of a session, messages that it recognises as preferences or decisions,
without their session. The contract tests of turns therefore use messages that it recognises as facts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.hermes_provider_faults import LIMITS as FAULT_LIMITS
from tests.hermes_provider_faults import SAYS, spoiled
from tests.provider_backend import ProviderBackend
from tests.provider_faults import Day, ProviderFaults, Spoil
from tests.provider_outage import GatewayProcess
from tests.runtime import CLI, ME, CoreFixture
from tests.servers.hermes_memories import Facts, Holographic, compare, python

from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.boundary import New
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Role
from everthread.lifecycle import NoteChange
from everthread.memory.delivery_results import Limits
from everthread.memory.provider_calls import Caller
from everthread.testing import in_loop
from everthread.testing.contracts.memory_provider import EffectsOf, ProviderContract, Session
from everthread.testing.recording_provider import StoredEntry

pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
LIMITS = Limits(attempt_s_max=5.0, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
NO_TURNS = "holographic keeps no turns: what it takes for a fact, when a session ends, is all it keeps of them"


@pytest.fixture
def facts(tmp_path: Path) -> Iterator[Facts]:
    facts = Facts(tmp_path / "bridge")
    yield facts
    facts.heal()


class TestHolographic(ProviderContract):
    @pytest.fixture
    def facts(self, tmp_path: Path) -> Facts:
        return Facts(tmp_path / "bridge")

    @pytest.fixture
    def settings(self, facts: Facts) -> dict[str, Any]:
        return facts.settings | {"owner": "ann"}

    @pytest.fixture
    def provider(self) -> Holographic:
        return close_with_loop(Holographic)

    @pytest.fixture
    def effects(self, facts: Facts) -> EffectsOf:
        return lambda provider: [StoredEntry("", "fact", text) for text in facts.all()]

    @pytest.mark.skip(reason=NO_TURNS)
    def test_the_turns_of_a_session_are_stored_in_order(self) -> None: ...

    @pytest.mark.skip(reason=f"{NO_TURNS}; see test_sessions_at_once_lose_no_fact")
    def test_concurrent_sessions_do_not_mix(self) -> None: ...

    @in_loop
    async def test_recall_finds_delivered_entries(self, caller: Caller, settles_s: float) -> None:
        await caller.ready()
        session = Session(caller, "s1", "ann")
        for event in (session.opened(), session.turn("I love the bees of Aarhus"), session.note("paints hives")):
            await session.deliver(event)
        await session.deliver(session.closed())
        for word, fact in (("bees", "I love the bees of Aarhus"), ("hives", "paints hives")):
            items = await caller.call("prefetch", word, ref=session.ref, limit=10, timeout_s=10)
            assert [item.text for item in items] == [fact]

    @in_loop
    async def test_recall_returns_at_most_the_limit(self, caller: Caller, settles_s: float) -> None:
        await caller.ready()
        session = Session(caller, "s1", "ann")
        for n in range(4):
            await session.deliver(session.note(f"bees again, hive {n}", f"n{n}"))
        assert len(await caller.call("prefetch", "bees", ref=session.ref, limit=10, timeout_s=10)) > 2
        assert len(await caller.call("prefetch", "bees", ref=session.ref, limit=2, timeout_s=10)) == 2

    @in_loop
    async def test_sessions_at_once_lose_no_fact(self, caller: Caller, facts: Facts) -> None:
        await caller.ready()
        sessions = [Session(caller, f"s{n}", f"owner-{n % 2}") for n in range(5)]
        for session in sessions:
            await session.deliver(session.turn(f"I need what was said in {session.ref.session_id}"))
        for session in reversed(sessions):
            await session.deliver(session.closed())
        for owner in (0, 1):
            home = facts.folder / "people" / f"owner-{owner}"
            wanted = {f"I need what was said in s{n}" for n in range(5) if n % 2 == owner}
            assert set(facts.of(home)) == wanted

    @in_loop
    async def test_a_redelivered_entry_has_no_second_effect(self, caller: Caller, effects: EffectsOf) -> None:
        """The contract exempts plugins, but this one stores nothing twice, and acknowledged entries are not delivered
        again.
        """
        await caller.ready()
        session = Session(caller, "s1", "ann")
        for event in (session.turn("I use a red keel"), session.note("keeps bees"), session.closed()):
            await session.deliver(event)
            await session.again()
        assert sorted(one.text for one in effects(caller.provider)) == ["I use a red keel", "keeps bees"]  # type: ignore[union-attr]


class TestFaultDays(ProviderFaults):
    """Kill, stop, cut off and slow down the plugin's process while two people talk and change their sessions."""

    says = SAYS

    @pytest.fixture
    def back_end(self, facts: Facts) -> ProviderBackend:
        return facts.back_end()

    @pytest.fixture
    def limits(self) -> Limits:
        return FAULT_LIMITS

    @pytest.fixture
    def spoil(self) -> Spoil:
        return spoiled

    def look_closer(self, day: Day, back_end: ProviderBackend) -> None:
        compare(day, back_end)


async def test_tools_act_on_the_memory_of_the_calling_user(tmp_path: Path, facts: Facts) -> None:
    settings = {"hermes:holographic": facts.settings}
    async with CoreFixture(tmp_path, close_with_loop(Holographic), limits=LIMITS, settings=settings) as core:
        ref = (await core.turn(CLI, "hello")).ref
        tools = (await core.memory.tool_schemas())["hermes:holographic"]
        assert [tool["name"] for tool in tools] == ["fact_store", "fact_feedback"]
        added = {"action": "add", "content": "The boat is called Skarven"}
        said = await core.memory.handle_tool_call("hermes:holographic", "fact_store", added, ref=ref)
        assert json.loads(said)["status"] == "added"
        [block] = await core.memory.system_prompt_blocks(ref=ref)
        assert "1 facts stored" in block
        recall = await core.memory.recall("Skarven", ref=ref, deadline_s=10)
        assert [item.text for item in recall.items] == ["The boat is called Skarven"]


async def test_a_killed_process_is_restarted_without_losing_facts(tmp_path: Path, facts: Facts) -> None:
    bridge = close_with_loop(Holographic)
    settings = {bridge.name: facts.settings}
    async with CoreFixture(tmp_path, bridge, limits=LIMITS, settings=settings) as core:
        await core.turn(CLI, "I like apples")
        await core.settled()
        child = bridge._users[ME]._child  # noqa: SLF001 - nobody else wants to know
        assert child is not None
        os.kill(child._process.pid, signal.SIGKILL)  # noqa: SLF001
        await core.turn(CLI, "I like birches")
        await core.cross(CLI, New())
        await core.turn(CLI, "I like cedars")
        await core.cross(CLI, New())
        await core.settled()
    assert sorted(facts.all()) == ["I like apples", "I like birches", "I like cedars"]


def test_turns_survive_an_outage_and_a_kill(tmp_path: Path, facts: Facts) -> None:
    """The outage scenario of tests/provider_outage.py, without sessions of facts, which this plugin does not store."""
    back_end = ProviderBackend(
        f"{Holographic.__module__}:{Holographic.__qualname__}",
        facts.settings,
        None,  # type: ignore[arg-type] - its file is held instead
        lambda: [],
        # Shorter than the plugin's own wait for its file, after which it drops the write silently.
        attempt_s=3.0,
    )
    life = GatewayProcess(tmp_path, back_end, 0)
    first = life.do("turn", "I like my boat Skarven")
    life.until("waiting", "", lambda count: count == 0)
    # While the file is locked, the close of the first session hangs, times out and is retried.
    facts.hang()
    second = life.do("new")
    assert life.do("turn", "I like my sister in Odense") == second
    assert life.do("resume", first) == first
    assert life.do("turn", "I like the red keel of my boat") == first
    time.sleep(8)
    assert life.do("waiting") > 0
    life.kill()

    life = GatewayProcess(tmp_path, back_end, 1)
    facts.heal()
    life.do("new")
    life.until("waiting", "", lambda count: count == 0)
    said = ["I like my boat Skarven", "I like my sister in Odense", "I like the red keel of my boat"]
    for fact in said:
        items = life.until("recall", fact, lambda items, fact=fact: fact in [item[0] for item in items])
        assert [item[0] for item in items].count(fact) == 1
    life.end()
    assert sorted(facts.all()) == said


async def test_the_plugin_is_selected_by_its_name_in_the_settings(tmp_path: Path) -> None:
    told = f'[memory]\nproviders = ["builtin", "hermes:holographic"]\n[memory.hermes]\npython = "{python()}"\n'
    (tmp_path / "config.toml").write_text(told)
    async with Runtime(load(str(tmp_path), {})) as runtime:
        await runtime.start()
        owner = runtime.settings.owner
        await runtime.lifecycle.accept(Inbound(CLI, owner, "I keep bees"))
        ticket = await runtime.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "I keep bees")], "")
        note = NoteChange(NoteAction.ADD, NoteTarget.USER, "Paints hives.")
        await runtime.lifecycle.write_note(note, owner=owner)
        assert await runtime.drain(60)
        recall = await runtime.memory.recall("hives", ref=ticket.ref, deadline_s=20)
        # The built-in memory also has this fact. It is recalled once, with both names.
        [item] = recall.items
        assert "Paints hives." in item.text
        assert {item.provider, *item.also} == {"builtin", "hermes:holographic"}
        assert (await runtime.memory.health())["hermes:holographic"] == "ok"


def test_the_memory_commands_list_and_test_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'[memory.hermes]\npython = "{python()}"\n')
    plugins = {one["name"]: one for one in ran(tmp_path, "list")["plugins"]}
    assert plugins["hermes:holographic"]["available"]
    assert {"hermes:openviking", "hermes:mem0", "hermes:honcho", "hermes:hindsight"} <= {*plugins}
    tried = ran(tmp_path, "test", "holographic")
    assert tried["ok"], tried
    assert "Skarven" in {step["step"]: step["said"] for step in tried["steps"]}["recalls"]
    assert not list(tmp_path.glob("**/memory_store.db"))


def ran(home: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "everthread", "memory", "bridge", *words, "--json", "--home", str(home)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=True)
    return json.loads(done.stdout)
