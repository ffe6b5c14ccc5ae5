"""Test Hermes Agent's own OpenViking plugin over the bridge, against the real OpenViking."""

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.provider_backend import ProviderBackend
from tests.provider_outage import GatewayProcess
from tests.runtime import CLI, CoreFixture, opened
from tests.servers.hermes_memories import OpenViking, python
from tests.servers.openviking_server import KEY, openviking
from tests.servers.openviking_server import OpenVikingServer as Server

from everthread.domain.boundary import New, Resume
from everthread.memory.delivery_results import Limits

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]
LIMITS = Limits(attempt_s_max=20.0, backoff_s=0.05, backoff_s_max=0.5, breaker_s=0.2)
SETTLES_S = 90.0
USER = "hermes"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with openviking() as server:
        yield server


@pytest.fixture
def account() -> str:
    """Account used by this test only."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(tmp_path: Path, server: Server, account: str) -> dict[str, Any]:
    home = tmp_path / "bridge" / "home"
    home.mkdir(parents=True)
    told = {"ENDPOINT": server.address, "API_KEY": KEY, "ACCOUNT": account, "USER": USER}
    (home / ".env").write_text("".join(f"OPENVIKING_{name}={value}\n" for name, value in told.items()))
    return {"folder": str(tmp_path / "bridge"), "python": python(), "owner": "me"}


def said_in(server: Server, account: str, session: str) -> list[str]:
    """User messages of a session in order: committed ones, then uncommitted ones."""
    root = f"viking://user/{USER}/sessions/{session}"
    found: list[str] = []
    for uri in (*server.archives(account, USER, session), root):
        rows = (server.ask(account, USER, "/content/read", uri=f"{uri}/messages.jsonl") or "").split("\n")
        messages = [json.loads(row) for row in rows if row]
        found += [" ".join(part["text"] for part in one["parts"]) for one in messages if one["role"] == "user"]
    return found


def commits(server: Server, account: str, session: str) -> int:
    return len(server.archives(account, USER, session))


async def settled(core: CoreFixture) -> None:
    deadline = time.monotonic() + SETTLES_S
    while any(status.lanes.waiting_entries for status in await core.memory.journal.status()):
        assert time.monotonic() < deadline, await core.memory.journal.status()
        await core.clock.sleep(0.1)


async def found(core: CoreFixture, word: str) -> bool:
    """Return True if the text is recalled once the server has had enough time."""
    deadline = time.monotonic() + SETTLES_S
    while time.monotonic() < deadline:
        recall = await core.memory.recall(word, ref=await core.at(CLI), deadline_s=20)
        if any(word in item.text for item in recall.items):
            return True
        await core.clock.sleep(1)
    return False


async def test_turns_arrive_in_their_sessions_and_every_close_commits(
    tmp_path: Path, server: Server, account: str, settings: dict[str, Any]
) -> None:
    """Includes a session that goes on after a close, which a single instance of this plugin would not commit again."""
    bridge = close_with_loop(OpenViking)
    async with CoreFixture(tmp_path, bridge, limits=LIMITS, settings={bridge.name: settings}) as core:
        old = (await core.turn(CLI, "apple")).ref.session_id
        await core.turn(CLI, "birch")
        new = opened(await core.cross(CLI, New()))
        await core.turn(CLI, "cedar")
        assert opened(await core.cross(CLI, Resume(old))) == old
        await core.turn(CLI, "damson")
        await core.cross(CLI, New())
        await settled(core)
        assert await core.incidents() == []
        assert said_in(server, account, old) == ["apple", "birch", "damson"]
        assert said_in(server, account, new) == ["cedar"]
        assert commits(server, account, old) == 2
        assert commits(server, account, new) == 1
        ref = await core.at(CLI)
        tools = [tool["name"] for tool in (await core.memory.tool_schemas())[bridge.name]]
        assert "viking_search" in tools
        answer = await core.memory.handle_tool_call(bridge.name, "viking_search", {"query": "apple"}, ref=ref)
        assert "error" not in json.loads(answer)
        # The server extracts memories from committed messages asynchronously.
        assert await found(core, "damson")


def test_turns_survive_an_outage_and_a_kill(
    tmp_path: Path, server: Server, account: str, settings: dict[str, Any]
) -> None:
    """The outage scenario of tests/provider_outage.py. Entries acknowledged by a killed process are sent again."""
    back_end = ProviderBackend(
        f"{OpenViking.__module__}:{OpenViking.__qualname__}",
        settings,
        None,  # type: ignore[arg-type] - the server itself is stopped instead
        lambda: [],
        attempt_s=8.0,
    )
    life = GatewayProcess(tmp_path, back_end, 0)
    first = life.do("turn", "my boat is called Skarven")
    life.until("waiting", "", lambda count: count == 0)
    os.kill(server.server.pid, signal.SIGSTOP)
    try:
        second = life.do("new")
        assert life.do("turn", "my sister lives in Odense") == second
        assert life.do("resume", first) == first
        assert life.do("turn", "my boat has a red keel") == first
        time.sleep(13)
        assert life.do("waiting") > 0
        life.kill()
        life = GatewayProcess(tmp_path, back_end, 1)
    finally:
        os.kill(server.server.pid, signal.SIGCONT)
    third = life.do("new")
    deadline = time.monotonic() + SETTLES_S
    while life.do("waiting"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    life.end()
    for session, facts in (
        (first, ["my boat is called Skarven", "my boat has a red keel"]),
        (second, ["my sister lives in Odense"]),
        (third, []),
    ):
        said = said_in(server, account, session)
        assert sorted({*said}, key=said.index) == facts, said
        assert len(said) <= 3 * len(facts), said
    assert commits(server, account, first) >= 1
    assert commits(server, account, second) >= 1
