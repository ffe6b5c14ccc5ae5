"""Test Hindsight against the provider contract: the real server with its own PostgreSQL."""

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.provider_backend import ProviderBackend
from tests.provider_faults import PATIENT, ProviderFaults
from tests.provider_outage import ProviderOutage
from tests.provider_scenarios import ProviderScenarios
from tests.runtime import CLI
from tests.servers.hindsight_server import HindsightServer, hindsight
from tests.servers.hindsight_session import (
    KEEPS,
    Talk,
    back_end_of,
    documents,
    everything,
    held,
    memories,
    operations,
    ready,
    texts,
)
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.errors import Unavailable
from everthread.domain.events import ForgetScope
from everthread.domain.model import Inbound, Message, Role
from everthread.memory.delivery_results import Limits
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def core() -> Iterator[HindsightServer]:
    with hindsight() as core:
        yield core


@pytest.fixture
def prefix() -> str:
    """Bank prefix used by this test only."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def door(core: HindsightServer) -> Iterator[FaultProxyServer]:
    with FaultProxyServer(core.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: FaultProxyServer, prefix: str) -> dict[str, Any]:
    return {"address": door.address, "bank": prefix, "profile": "main"}


class TestHindsight(ProviderContract):
    @pytest.fixture
    def settings(self, door: FaultProxyServer, prefix: str) -> dict[str, Any]:
        return {"address": door.address, "bank": prefix, "profile": "main"}

    @pytest.fixture
    def provider(self) -> Hindsight:
        return close_with_loop(Hindsight)

    @pytest.fixture
    def effects(self, core: HindsightServer, prefix: str) -> EffectsOf:
        return lambda provider: held(core.address, prefix)

    @pytest.fixture
    def faults(self, door: FaultProxyServer) -> Faults:
        return door

    @pytest.fixture
    def settles_s(self) -> float:
        return 5.0


# Hindsight-specific risks of data loss --------------------------------------------------------------------------------


@pytest.fixture
def bank(prefix: str) -> str:
    return f"/v1/default/banks/{prefix}__main__ann"


async def test_a_redelivered_turn_creates_no_server_operation(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees in Aarhus")
    before, work = memories(core, bank), operations(core, bank)
    assert before
    await talk.say("I keep bees in Aarhus", again=True)
    assert (memories(core, bank), operations(core, bank)) == (before, work)
    # A replay is processed again, and leaves the same contents.
    await talk.say("I keep bees in Aarhus", again=True, replay=1)
    assert operations(core, bank) > work
    assert len(memories(core, bank)) == len(before)


async def test_a_resumed_session_continues_and_erases_nothing(
    core: HindsightServer, settings: dict[str, Any], prefix: str
) -> None:
    provider = await ready(settings)
    old, new = Talk(provider, "old"), Talk(provider, "new")
    await old.say("I keep bees")
    await new.say("I paint hives")
    await old.say("I sell honey")
    assert texts(core, prefix) == {
        "old/0001": "user: I keep bees\nassistant: I see.",
        "new/0001": "user: I paint hives\nassistant: I see.",
        "old/0002": "user: I sell honey\nassistant: I see.",
    }


async def test_a_parent_is_stored_only_if_there_is_one(
    core: HindsightServer, settings: dict[str, Any], prefix: str
) -> None:
    provider = await ready(settings)
    child, single = Talk(provider, "child"), Talk(provider, "single")
    await single.open()
    await single.say("I keep bees")
    await child.open("single")
    await child.say("and hives")
    about = {one["id"]: one["document_metadata"] for one in documents(core.address, prefix)}
    assert [each for each, metadata in about.items() if "parent" in metadata] == ["child/opened"]
    assert about["child/opened"]["parent"] == "single"
    # The parent is stored as metadata, and is in no prompt.
    items = await provider.prefetch("conversation single continues", ref=child.ref, limit=10)
    assert not [item for item in items if "continues" in item.text]


async def test_recalled_entries_name_their_session_and_turn(settings: dict[str, Any]) -> None:
    talk = Talk(await ready(settings), "s:1/x")
    await talk.say("nothing much")
    await talk.say("I keep bees in Aarhus")
    found = await talk.provider.prefetch("bees Aarhus", ref=talk.ref, limit=1)
    assert [(item.session_id, item.turn, item.at) for item in found] == [("s:1/x", 2, 86_400.0)]
    assert await talk.provider.prefetch("?!", ref=talk.ref, limit=5) == ()
    assert await talk.provider.prefetch("bees " * 2_000, ref=talk.ref, limit=5)


async def test_a_turn_that_the_server_failed_to_process_is_processed_later(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    """The server accepts the turn and fails later. The turn counts as delivered only once it is stored."""
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees")
    core.model.fail_next(10_000)
    try:
        with pytest.raises(Unavailable):
            await talk.say("I sell honey")
        assert list(texts(core, prefix)) == ["s1/0001"]
        other = Talk(talk.provider, "s2")
        with pytest.raises(Unavailable):
            await other.say("I planted larkspur")
    finally:
        core.model.heal()
    await talk.say("I sell honey", again=True)
    assert list(texts(core, prefix)) == ["s1/0001", "s1/0002"]
    # Forgetting also covers a turn that was never processed.
    assert "larkspur" in everything(core, bank)
    await other.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(core, bank)


async def test_a_note_that_comes_late_does_not_replace_a_newer_one(
    core: HindsightServer, settings: dict[str, Any], prefix: str
) -> None:
    provider = await ready(settings)
    one, other = Talk(provider, "one"), Talk(provider, "other")
    await one.note("keeps seven hives", version=3)
    await other.note("keeps two hives", version=2)
    assert texts(core, prefix) == {"note/n1": "keeps seven hives"}
    await other.note("", version=4, action="remove")
    assert texts(core, prefix) == {}


async def test_forgetting_a_fact_removes_its_words_and_nothing_else(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.note("the code is quincunx", version=1)
    await talk.say("remember that the code is quincunx, and that I keep bees")
    await talk.forget(ForgetScope.FACT, "the code is quincunx", "n1")
    assert texts(core, prefix) == {
        "s1/0001": "user: remember that [forgotten], and that I keep bees\nassistant: I see."
    }
    assert "quincunx" not in everything(core, bank)


async def test_the_server_keeps_no_text_of_a_forgotten_session(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    gone, stays = Talk(provider, "gone"), Talk(provider, "stays")
    await stays.say("I sell honey")
    await gone.say("I planted larkspur")
    await gone.say("and larkspur again")
    await provider.on_session_switch("gone", rewound=True, turns=(2,), ref=gone.ref, delivery=gone.delivery())
    assert "larkspur" in everything(core, bank)
    await gone.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(core, bank)
    assert list(texts(core, prefix)) == ["stays/0001"]


async def test_it_reports_its_health_and_its_tools_answer(
    settings: dict[str, Any], door: FaultProxyServer, prefix: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    assert await talk.provider.health() == "ok"
    await talk.say("I keep bees")
    found = await talk.provider.handle_tool_call("hindsight_recall", {"query": "bees"}, ref=talk.ref)
    assert "I keep bees" in found
    door.fail_next()
    assert "503" in await talk.provider.health()


def test_the_official_client_finds_stored_entries(core: HindsightServer, settings: dict[str, Any], prefix: str) -> None:
    async def told() -> None:
        await Talk(await ready(settings), "s1").say("I keep bees in Aarhus")

    asyncio.run(told())
    program = (
        "import sys; from hindsight_client import Hindsight\n"
        "with Hindsight(base_url=sys.argv[1]) as client:\n"
        "    for one in client.recall(bank_id=sys.argv[2], query='bees').results:\n"
        "        print(one.document_id, one.metadata)\n"
    )
    command = [core.client, "-c", program, core.address, f"{prefix}__main__ann"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.startswith("s1/0001 ")
    assert "'session': 's1'" in said


class TestScenarios(ProviderScenarios, ProviderOutage, ProviderFaults):
    @pytest.fixture
    def limits(self) -> Limits:
        return PATIENT

    @pytest.fixture
    def back_end(
        self, core: HindsightServer, door: FaultProxyServer, settings: dict[str, Any], prefix: str
    ) -> ProviderBackend:
        return back_end_of(core, door, settings, prefix)


async def test_hindsight_is_selected_by_its_name_in_the_settings(
    core: HindsightServer, prefix: str, tmp_path: Path
) -> None:
    named = f'address = "{core.address}"\nbank = "{prefix}"\n'
    (tmp_path / "config.toml").write_text(f'[memory]\nproviders = ["hindsight"]\n[memory.hindsight]\n{named}')
    async with Runtime(load(str(tmp_path), {})) as runtime:
        await runtime.start()
        await runtime.lifecycle.accept(Inbound(CLI, runtime.settings.owner, "I keep bees"))
        ticket = await runtime.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "I keep bees")], "")
        assert await runtime.drain(30)
        recall = await runtime.memory.recall("bees", ref=ticket.ref, deadline_s=10)
        assert [(item.provider, item.session_id, item.turn) for item in recall.items] == [
            ("hindsight", ticket.ref.session_id, 1)
        ]
