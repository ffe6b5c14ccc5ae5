"""Test OpenViking against the provider contract: the real server with a stub model."""

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
from tests.provider_session import ProviderSession
from tests.runtime import CLI
from tests.servers import openviking_server as openviking_house
from tests.servers.environments import environment
from tests.servers.openviking_server import OpenVikingServer
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.openviking.provider import OpenViking
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import load
from everthread.domain.boundary import New
from everthread.domain.errors import Rejected, ToolFailed, Unavailable
from everthread.domain.events import ForgetScope
from everthread.domain.model import Inbound, Message, Role
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import MemoryProvider
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def core() -> Iterator[OpenVikingServer]:
    with openviking_house.openviking() as core:
        yield core


@pytest.fixture
def account() -> str:
    """Account used by this test only."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def door(core: OpenVikingServer) -> Iterator[FaultProxyServer]:
    with FaultProxyServer(core.address, openviking_house.KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: FaultProxyServer, account: str) -> dict[str, Any]:
    return {"url": door.address, "api_key": openviking_house.KEY, "account": account}


class TestOpenViking(ProviderContract):
    @pytest.fixture
    def settings(self, door: FaultProxyServer, account: str) -> dict[str, Any]:
        return {"url": door.address, "api_key": openviking_house.KEY, "account": account}

    @pytest.fixture
    def provider(self) -> OpenViking:
        return close_with_loop(OpenViking)

    @pytest.fixture
    def effects(self, core: OpenVikingServer, account: str) -> EffectsOf:
        return lambda provider: core.held(account)

    @pytest.fixture
    def faults(self, door: FaultProxyServer) -> Faults:
        return door

    @pytest.fixture
    def settles_s(self) -> float:
        return 5.0


# OpenViking-specific risks of data loss -------------------------------------------------------------------------------


async def ready(settings: dict[str, Any]) -> OpenViking:
    provider = close_with_loop(OpenViking)
    await provider.initialize(**settings)
    return provider


def commits(door: FaultProxyServer) -> int:
    return sum(what.endswith("/commit") for what in door.passed)


def said(core: OpenVikingServer, account: str, session: str) -> list[str]:
    return [one.text for one in core.held(account) if (one.session_id, one.kind) == (session, "turn")]


async def test_end_then_switch_commits_once_and_an_empty_session_is_never_committed(
    core: OpenVikingServer, settings: dict[str, Any], account: str, door: FaultProxyServer
) -> None:
    provider = await ready(settings)
    empty, talk = ProviderSession(provider, "empty"), ProviderSession(provider, "s1")
    await empty.open("some-parent")
    await empty.close()
    await ProviderSession(provider, "never-opened").close()
    assert commits(door) == 0
    await talk.say("I keep bees")
    await talk.close()
    await talk.close()
    assert commits(door) == 1
    # The next close commits the messages after a commit, and nothing else.
    await talk.say("I sell honey")
    await talk.close()
    assert commits(door) == 2
    archives = core.archives(account, "ann", "s1")
    assert list(archives.values()) == [True, True]
    texts = [[line.text for line in core.lines(account, "ann", uri) if line.role == "user"] for uri in archives]
    assert texts == [["I keep bees"], ["I sell honey"]]


async def test_extracted_memories_name_their_session_and_turn(settings: dict[str, Any]) -> None:
    talk = ProviderSession(await ready(settings), "S:1/x")
    await talk.say("nothing much", "Well. " * 40)
    await talk.say("I keep bees in Aarhus. " * 12)
    await talk.hand_over("count the hives", "there are seven")
    await talk.close()
    [best, *_] = await talk.recall("bees Aarhus")
    assert "bees in Aarhus" in best[0]
    assert best[1:] == ("S:1/x", 2)
    await talk.say("my boat is red")
    await talk.close()
    assert (await talk.recall("boat red"))[0][1:] == ("S:1/x", 3)
    assert await talk.recall("  ") == []
    assert await talk.recall("bees " * 2_000)


async def test_a_turn_sent_by_another_process_is_not_sent_again(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    one, other = ProviderSession(await ready(settings), "s1"), ProviderSession(await ready(settings), "s1")
    await one.say("I keep bees")
    other.turns, other.seq = dict(one.turns), one.seq
    await other.say("I sell honey")
    await one.say("I sell honey")
    assert len(said(core, account, "s1")) == 2
    await other.close()
    await one.again(2, attempt=2)
    assert len(said(core, account, "s1")) == 2


async def test_a_turn_duplicated_by_a_late_request_is_committed_once(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    talk = ProviderSession(await ready(settings), "s1")
    await talk.say("I keep bees")
    await talk.say("I sell honey")
    twice = core.lines(account, "ann", "viking://user/ann/sessions/s1")
    messages = [{"role": one.role, "content": one.text, "source_message_ids": [str(one.mark)]} for one in twice[:2]]
    core.post(account, "ann", "/sessions/s1/messages/batch", {"messages": messages})
    assert len(said(core, account, "s1")) == 3
    await talk.close()
    assert [text.partition("\n")[0] for text in said(core, account, "s1")] == [
        "user: I keep bees",
        "user: I sell honey",
    ]


async def test_a_provider_added_during_a_session_receives_earlier_turns_by_replay(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    past, talk = ProviderSession(close_with_loop(MemoryProvider), "s1"), ProviderSession(await ready(settings), "s1")
    for text in ("I keep bees", "I sell honey"):
        await past.say(text)
    await past.close()
    await past.say("my boat is red")
    talk.turns, talk.seq = dict(past.turns), past.seq
    await talk.say("I planted foxglove")
    await talk.close()
    for number in (1, 2):
        await talk.again(number, replay=1)
    await talk.close()
    for number in (3, 4):
        await talk.again(number, replay=1)
    await talk.close()
    texts = [text.partition("\n")[0].removeprefix("user: ") for text in said(core, account, "s1")]
    assert texts == ["I planted foxglove", "I keep bees", "I sell honey", "my boat is red"]
    for number in range(1, 5):
        await talk.again(number, replay=2)
    assert len(said(core, account, "s1")) == 4


async def test_a_rejected_entry_can_be_delivered_later(
    core: OpenVikingServer, settings: dict[str, Any], account: str, door: FaultProxyServer
) -> None:
    talk = ProviderSession(await ready(settings), "s1")
    await talk.say("I keep bees")
    door.reject_next()
    with pytest.raises(Rejected):
        await talk.say("I sell honey")
    await talk.say("my boat is red")
    await talk.close(missing=(2,))
    await talk.again(2)
    await talk.close()
    assert len(said(core, account, "s1")) == 3
    await talk.again(2)
    assert len(said(core, account, "s1")) == 3


async def test_a_failed_commit_is_repeated_until_memories_are_extracted(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    """After a failed commit, the server has removed the messages and would skip a second commit."""
    talk = ProviderSession(await ready(settings), "s1")
    await talk.say("I keep bees")
    core.model.fail_next(10_000, 400)
    try:
        with pytest.raises(Unavailable, match="extract memories"):
            await talk.close()
    finally:
        core.model.heal()
    assert said(core, account, "s1") == []
    assert await talk.recall("bees") == []
    # Another process without state of the failure repeats it too.
    other = ProviderSession(await ready(settings), "s1")
    other.turns, other.seq = talk.turns, talk.seq - 1
    await other.close()
    assert said(core, account, "s1") == ["user: I keep bees\nassistant: I see."]
    assert [one[1:] for one in await talk.recall("bees")] == [("s1", 1)]
    assert list(core.archives(account, "ann", "s1").values()) == [False, True]
    # The turn is not sent a third time.
    await other.again(1, attempt=2)
    await other.close()
    assert len(said(core, account, "s1")) == 1


async def test_an_undone_turn_is_not_sent_again_after_a_failed_commit(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    talk = ProviderSession(await ready(settings), "s1")
    await talk.say("I keep bees")
    await talk.say("I sell honey")
    core.model.fail_next(10_000, 400)
    try:
        with pytest.raises(Unavailable):
            await talk.close()
    finally:
        core.model.heal()
    await talk.close(hidden=(2,))
    assert said(core, account, "s1") == ["user: I keep bees\nassistant: I see."]


async def test_an_undone_turn_is_removed_both_before_and_after_a_commit(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    talk = ProviderSession(await ready(settings), "s1")
    await talk.say("I keep bees")
    await talk.say("I planted larkspur")
    await talk.close()
    await talk.say("I planted foxglove")
    await talk.say("I sell honey")
    await talk.undo(2, 3)
    assert not [text for text, _, _ in await talk.recall("planted larkspur foxglove") if "planted" in text]
    assert [one[1:] for one in await talk.recall("bees") if "bees" in one[0]] == [("s1", 1)]
    await talk.close(hidden=(2, 3))
    found = await talk.recall("planted honey")
    assert [one[1:] for one in found if "honey" in one[0]] == [("s1", 4)]
    assert not [text for text, _, _ in found if "foxglove" in text]
    # A committed turn is recognised, although the server keeps no copy of it.
    await talk.again(1, attempt=2)
    assert [text for text in said(core, account, "s1") if "bees" in text] == []


@pytest.mark.parametrize("acted", [False, True])
async def test_a_session_rewrite_survives_a_cut_at_every_step(
    core: OpenVikingServer, settings: dict[str, Any], account: str, door: FaultProxyServer, acted: bool
) -> None:
    provider = await ready(settings)
    cuts = step = 0
    is_reached = True
    while is_reached:
        step += 1
        talk = ProviderSession(provider, f"s{step}")
        for text in ("I keep bees", "I sell honey"):
            await talk.say(text)
        door.cut_at(step, acted=acted)
        while True:
            try:
                await talk.undo(2)
                break
            except Unavailable:
                cuts += 1
        is_reached = door.steps <= 0
        door.heal()
        left = core.lines(account, "ann", f"viking://user/ann/sessions/s{step}")
        assert [line.text for line in left] == ["I keep bees", "I see."], step
    # The HTTP library repeats idempotent requests.
    assert (step > 15, cuts >= 7) == (True, True), (step, cuts)
    assert not [name for name in core.sessions(account, "ann") if "spare" in name]


async def test_a_note_that_comes_late_does_not_replace_a_newer_one(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    provider = await ready(settings)
    one, other = ProviderSession(provider, "one"), ProviderSession(provider, "other")
    await one.note("keeps seven hives", version=3)
    await other.note("keeps two hives", version=2)
    uri = "viking://user/ann/memories/notes/n1.md"
    assert core.ask(account, "ann", "/content/read", uri=uri) == "keeps seven hives"
    assert await one.recall("hives") == [("keeps seven hives", "one", None)]
    await other.note("", version=4, action="remove")
    assert core.ask(account, "ann", "/content/read", uri=uri) is None
    assert await one.recall("hives") == []


async def test_the_server_keeps_no_text_of_a_forgotten_session(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    provider = await ready(settings)
    gone, stays = ProviderSession(provider, "gone"), ProviderSession(provider, "stays")
    await stays.say("I sell honey")
    await stays.close()
    await gone.say("I planted larkspur")
    await gone.close()
    await gone.say("and larkspur again")
    await gone.note("planted larkspur", version=1)
    assert "larkspur" in core.everything(account)
    await gone.forget(ForgetScope.SESSION)
    assert "larkspur" not in core.everything(account)
    assert [one[1] for one in await stays.recall("honey larkspur")] == ["stays"]
    assert said(core, account, "stays")


async def test_forgetting_a_fact_removes_its_words_and_nothing_else(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    provider, fact = await ready(settings), 'the code is "quincunx"'
    old, new = ProviderSession(provider, "old"), ProviderSession(provider, "new")
    await old.say(f"remember that {fact}, and that I keep bees")
    await old.close()
    await new.say(f"once more: {fact}, and I sell honey")
    await new.note(fact, version=1)
    other = ProviderSession(provider, "other")
    await other.say("the code is something else")
    await other.close()
    await new.forget(ForgetScope.FACT, fact, "n1")
    assert "quincunx" not in core.everything(account)
    found = await old.recall("bees")
    assert [(session, turn) for text, session, turn in found if "bees" in text] == [("old", 1)]
    assert said(core, account, "new") == ["user: once more: [forgotten], and I sell honey\nassistant: I see."]
    # Similar messages of other users stay.
    assert list(core.archives(account, "ann", "other").values()) == [True]
    # A redelivery restores none of it.
    await old.again(1, attempt=2)
    await old.close()
    assert "quincunx" not in core.everything(account)


async def test_a_server_that_would_mix_up_users_is_refused(settings: dict[str, Any], door: FaultProxyServer) -> None:
    provider = await ready(settings)
    assert await provider.health() == "ok"
    door.answer("GET /health", b'{"status":"ok","auth_mode":"api_key"}')
    assert "does not keep users apart" in await provider.health()
    other = ProviderSession(await ready(settings), "s1")
    with pytest.raises(Unavailable, match="keep users apart"):
        await other.say("I keep bees")
    assert not [what for what in door.passed if "sessions" in what]
    door.heal()
    door.fail_next()
    assert "503" in await provider.health()


async def test_tools_answer_and_reach_no_other_users_memories(settings: dict[str, Any]) -> None:
    provider = await ready(settings)
    ann, bob = ProviderSession(provider, "a1"), ProviderSession(provider, "b1", owner="bob")
    await ann.say('I keep "bees" [in Aarhus]')
    said = await provider.handle_tool_call("openviking_look_up", {"words": "bees"}, ref=ann.ref)
    assert said == '- user: I keep "bees" [in Aarhus]'
    assert said == await provider.handle_tool_call("openviking_look_up", {"words": 'keep "bees" [in'}, ref=ann.ref)
    assert "Nobody" in await provider.handle_tool_call("openviking_look_up", {"words": "bees"}, ref=bob.ref)
    await ann.close()
    found = await provider.handle_tool_call("openviking_search", {"query": "bees"}, ref=ann.ref)
    assert "I keep" in found
    uri = found.rpartition("(")[2].rstrip(")")
    assert "I keep" in await provider.handle_tool_call("openviking_read", {"uri": uri}, ref=ann.ref)
    for address in (uri, uri.replace("/ann/", "/bob/../ann/"), "viking://user/ann", "/etc/passwd"):
        with pytest.raises(ToolFailed):
            await provider.handle_tool_call("openviking_read", {"uri": address}, ref=bob.ref)


class TestScenarios(ProviderScenarios, ProviderOutage, ProviderFaults):
    @pytest.fixture
    def limits(self) -> Limits:
        return PATIENT

    @pytest.fixture
    def back_end(
        self, core: OpenVikingServer, door: FaultProxyServer, settings: dict[str, Any], account: str
    ) -> ProviderBackend:
        return openviking_house.back_end_of(core, door, settings, account)


async def test_openviking_is_selected_by_its_name_in_the_settings(
    core: OpenVikingServer, account: str, tmp_path: Path
) -> None:
    named = f'url = "{core.address}"\naccount = "{account}"\n'
    (tmp_path / "config.toml").write_text(f'[memory]\nproviders = ["openviking"]\n[memory.openviking]\n{named}')
    async with Runtime(load(str(tmp_path), {"OPENVIKING_API_KEY": openviking_house.KEY})) as runtime:
        await runtime.start()
        await runtime.lifecycle.accept(Inbound(CLI, runtime.settings.owner, "I keep bees"))
        ticket = await runtime.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await runtime.lifecycle.commit_turn(ticket, [Message(Role.USER, "I keep bees")], "")
        await runtime.lifecycle.cross(CLI, New(), owner=runtime.settings.owner)
        assert await runtime.drain(60)
        recall = await runtime.memory.recall("bees", ref=ticket.ref, deadline_s=10)
        assert [(item.provider, item.session_id, item.turn) for item in recall.items] == [
            ("openviking", ticket.ref.session_id, 1)
        ]


def test_the_official_client_finds_stored_entries(
    core: OpenVikingServer, settings: dict[str, Any], account: str
) -> None:
    async def told() -> None:
        talk = ProviderSession(await ready(settings), "s1")
        await talk.say("I keep bees in Aarhus")
        await talk.close()

    asyncio.run(told())
    program = (
        "import sys; from openviking_sdk import SyncHTTPClient\n"
        "client = SyncHTTPClient(url=sys.argv[1], api_key=sys.argv[2], account=sys.argv[3], user='ann')\n"
        "client.initialize()\n"
        "print(client.find('bees'))\n"
        "client.close()\n"
    )
    python = environment("openviking") / "bin" / "python"
    command = [python, "-c", program, core.address, openviking_house.KEY, account]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "bees in Aarhus" in said.stdout, said
