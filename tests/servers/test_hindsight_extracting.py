"""Test Hindsight with a model that extracts facts from messages and conclusions from facts, as users run it.

The model is a stub that takes each line of a user for a fact.
"""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from tests.cleanup import close_with_loop
from tests.e2e.commands import everthread
from tests.provider_faults import PATIENT, lived
from tests.runtime import CLI
from tests.runtime import CoreFixture as Process
from tests.servers.hindsight_server import HindsightServer, hindsight
from tests.servers.hindsight_session import KEEPS, Talk, asked, back_end_of, documents, everything, ready, texts
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.domain.boundary import New, Resume
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import ForgetScope
from everthread.memory.delivery_results import Limits

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

LIMITS = Limits(attempt_s_max=30.0, attempts_max=2, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
SLOW_S = 1.5
"""Seconds that the model takes to answer a request whose client has disconnected."""


@pytest.fixture(scope="module")
def core() -> Iterator[HindsightServer]:
    with hindsight(extracting=True) as core:
        yield core


@pytest.fixture
def prefix(core: HindsightServer) -> Iterator[str]:
    """Bank prefix used by this test only."""
    yield f"t{uuid.uuid4().hex[:12]}"
    core.model.heal()


@pytest.fixture
def door(core: HindsightServer) -> Iterator[FaultProxyServer]:
    with FaultProxyServer(core.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: FaultProxyServer, prefix: str) -> dict[str, Any]:
    return {"address": door.address, "bank": prefix, "profile": "main"}


@pytest.fixture
def bank(prefix: str) -> str:
    return f"/v1/default/banks/{prefix}__main__ann"


def facts(core: HindsightServer, bank: str) -> dict[str, list[str]]:
    """Facts that the model has extracted, and its conclusions."""
    found: dict[str, list[str]] = {}
    for one in asked(core.address, f"{bank}/memories/list?limit=1000")["items"]:
        found.setdefault(one["fact_type"], []).append(one["text"])
    return found


async def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "timed out waiting for the condition"
        await asyncio.sleep(0.1)


async def settled(process: Process) -> None:
    """Wait until all entries are delivered, with a longer timeout for a slow server."""
    deadline = time.monotonic() + 60
    while any([status.lanes.waiting_entries for status in await process.memory.journal.status()]):
        assert time.monotonic() < deadline, await process.memory.journal.status()
        await asyncio.sleep(0.1)


async def tried(process: Process, session: str, times: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        cursor = await process.store.read(lambda uow: uow.cursors.get("hindsight", session))
        if cursor is not None and cursor.attempts >= times:
            return
        assert time.monotonic() < deadline, cursor
        await asyncio.sleep(0.1)


def at_work(core: HindsightServer, bank: str) -> bool:
    try:
        listed = asked(core.address, f"{bank}/operations?limit=100&status=processing")["operations"]
    except HTTPError:
        # The bank is created with its first document.
        return False
    return any(one["document_id"] for one in listed)


async def test_facts_are_extracted_and_name_their_session_and_turn(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("nothing much")
    await talk.say("I keep bees in Aarhus")
    drawn = facts(core, bank)["world"]
    assert any("I keep bees in Aarhus" in fact for fact in drawn)
    # The assistant's text is no fact, so the model chose the facts, and they are no chunks of the text.
    assert not any("I see" in fact for fact in drawn)
    [item] = await talk.provider.prefetch("bees Aarhus", ref=talk.ref, limit=1)
    assert (item.session_id, item.turn, "bees" in item.text) == ("s1", 2, True)


async def test_a_redelivered_turn_makes_no_model_call(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees in Aarhus")
    await until(lambda: "observation" in facts(core, bank))
    before, thought = facts(core, bank), core.model.asked["/v1/chat/completions"]
    await talk.say("I keep bees in Aarhus", again=True)
    await asyncio.sleep(0.5)
    assert (facts(core, bank), core.model.asked["/v1/chat/completions"]) == (before, thought)


async def test_resuming_a_session_and_failed_writes_erase_no_fact(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    """Covers a later session, the resumed session, and a write that the server aborts halfway."""
    provider = await ready(settings)
    old, new = Talk(provider, "old"), Talk(provider, "new")
    await old.say("I keep bees")
    await new.say("I paint hives")
    await new.note("has two ladders", version=1)
    core.model.refuse("honey")
    with pytest.raises(ProviderError):
        await old.say("I sell honey")
    # A redelivery of a stored turn fails, and the turn stays unchanged.
    core.model.refuse("seven")
    with pytest.raises(ProviderError):
        await new.note("has seven ladders", version=2)
    core.model.heal()
    await old.say("I sell honey", again=True)
    assert texts(core, prefix) == {
        "note/n1": "has two ladders",
        "old/0001": "user: I keep bees\nassistant: I see.",
        "new/0001": "user: I paint hives\nassistant: I see.",
        "old/0002": "user: I sell honey\nassistant: I see.",
    }
    drawn = facts(core, bank)["world"]
    for said in ("I keep bees", "I paint hives", "I sell honey", "has two ladders"):
        assert sum(said in fact for fact in drawn) == 1, drawn


async def test_forgetting_a_session_removes_its_facts_and_conclusions(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    gone, stays = Talk(provider, "gone"), Talk(provider, "stays")
    await stays.say("I sell honey")
    await gone.say("I planted larkspur")
    await until(lambda: "larkspur" in json.dumps(facts(core, bank).get("observation", [])))
    await gone.forget(ForgetScope.SESSION)
    # New conclusions from the remaining facts may take a moment. None contains the word.
    await asyncio.sleep(1.0)
    assert "larkspur" not in everything(core, bank)
    assert list(texts(core, prefix)) == ["stays/0001"]
    assert any("I sell honey" in fact for fact in facts(core, bank)["world"])


# Forgetting during processing -----------------------------------------------------------------------------------------


@asynccontextmanager
async def under_way(core: HindsightServer, bank: str, saying: Awaitable[None]) -> AsyncIterator[None]:
    """Run while the server processes a request whose client has disconnected."""
    core.model.delay(SLOW_S)
    task = asyncio.ensure_future(saying)
    await until(lambda: at_work(core, bank))
    task.cancel()
    await asyncio.wait({task})
    yield
    core.model.heal()
    # By now, any late result of that request has been stored.
    await asyncio.sleep(2 * SLOW_S + 1)


async def test_a_session_forgotten_during_processing_does_not_come_back(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    provider = await ready(settings)
    talk = Talk(provider, "gone")
    await Talk(provider, "stays").say("I sell honey")
    async with under_way(core, bank, talk.say("I planted larkspur")):
        await talk.forget(ForgetScope.SESSION)
        assert "larkspur" not in everything(core, bank)
    assert "larkspur" not in everything(core, bank)
    assert "I sell honey" in everything(core, bank)


async def test_a_fact_forgotten_during_processing_does_not_come_back(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    talk, desk = Talk(provider, "s1"), Talk(provider, "notes:ann")
    await desk.say("I sell honey")
    async with under_way(core, bank, talk.say("the code is quincunx, and I keep bees")):
        # The forget entry is in another session, and does not wait for entries of this one.
        await desk.forget(ForgetScope.FACT, "the code is quincunx")
        assert "quincunx" not in everything(core, bank)
    assert "quincunx" not in everything(core, bank)
    assert texts(core, prefix)["s1/0001"] == "user: [forgotten], and I keep bees\nassistant: I see."


async def test_an_owner_forgotten_during_processing_does_not_come_back(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    talk, desk = Talk(provider, "s1"), Talk(provider, "notes:ann")
    await Talk(provider, "s2", owner="bob").say("I sell honey")
    async with under_way(core, bank, talk.say("I planted larkspur")):
        await desk.forget(ForgetScope.OWNER)
    assert [one["original_text"] for one in documents(core.address, prefix)] == [
        "user: I sell honey\nassistant: I see."
    ]


async def test_a_forget_that_times_out_on_the_server_is_retried_and_reported_as_waiting(
    core: HindsightServer, settings: dict[str, Any], bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.adapters.memory.hindsight.client.INGEST_S_MAX", 0.3)
    talk = Talk(await ready(settings), "gone")
    async with under_way(core, bank, talk.say("I planted larkspur")):
        with pytest.raises(Unavailable, match="still ingesting"):
            await talk.forget(ForgetScope.SESSION)
    await talk.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(core, bank)


# Documents that the server never processes ----------------------------------------------------------------------------


async def test_a_document_the_server_never_processes_is_parked_and_blocks_no_other(
    core: HindsightServer, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text('[memory]\nproviders = ["builtin"]\n')
    settings = {"hindsight": {"address": core.address, "bank": prefix, "profile": "main"}}
    core.model.refuse("hemlock")
    async with Process(tmp_path, close_with_loop(Hindsight), limits=LIMITS, settings=settings) as process:
        poisoned = (await process.turn(CLI, "this is hemlock")).ref.session_id
        await process.turn(CLI, "I keep bees")
        await process.cross(CLI, New())
        other = (await process.turn(CLI, "I sell honey")).ref.session_id
        await process.cross(CLI, Resume(poisoned))
        await process.turn(CLI, "I paint hives")
        await settled(process)
        [status] = await process.memory.journal.status()
        assert [(one.session_id, "could not ingest a document" in one.error) for one in status.parked] == [
            (poisoned, True)
        ]
        # The failure counts as no outage, and no other entry was delayed or parked.
        assert status.breaker_open_until is None
    stored = {one["original_text"].partition("\n")[0] for one in documents(core.address, prefix)}
    assert stored == {"user: I keep bees", "user: I sell honey", "user: I paint hives"}
    shown = everthread(tmp_path, "memory", "status").stdout
    assert poisoned in shown.partition("Parked:")[2]
    assert other not in shown
    # Once the cause is fixed, the entry can be delivered.
    core.model.heal()
    async with Process(tmp_path, close_with_loop(Hindsight), limits=LIMITS, settings=settings) as process:
        process.clock.ahead_s = 3600
        assert await process.memory.journal.retry("hindsight") == 1
        await settled(process)
    assert any("this is hemlock" in one["original_text"] for one in documents(core.address, prefix))


async def test_nothing_is_parked_during_a_model_outage(core: HindsightServer, prefix: str, tmp_path: Path) -> None:
    settings = {"hindsight": {"address": core.address, "bank": prefix, "profile": "main"}}
    async with Process(tmp_path, close_with_loop(Hindsight), limits=LIMITS, settings=settings) as process:
        await process.turn(CLI, "I keep bees")
        await settled(process)
        core.model.fail_next(10_000)
        session = (await process.turn(CLI, "I sell honey")).ref.session_id
        # More often than a failure without an outage may be retried before it is parked.
        await tried(process, session, LIMITS.attempts_max + 1)
        [status] = await process.memory.journal.status()
        assert "could not ingest a document" in (status.last_error or "")
        assert (status.parked, status.lanes.waiting_entries) == ((), 1)
        core.model.heal()
        await process.later(60)
        await settled(process)
    assert len(documents(core.address, prefix)) == 2


async def test_after_faults_each_turn_and_each_of_its_facts_is_stored_once(
    core: HindsightServer, door: FaultProxyServer, settings: dict[str, Any], prefix: str, tmp_path: Path
) -> None:
    back_end = back_end_of(core, door, {**settings, "address": core.address}, prefix)
    day = await lived(tmp_path, back_end, 7, PATIENT)
    assert day.problems == []
    drawn = [
        fact
        for name in asked(core.address, "/v1/default/banks")["banks"]
        if name["bank_id"].startswith(prefix)
        for fact in facts(core, f"/v1/default/banks/{name['bank_id']}").get("world", [])
    ]
    for word in {f"word{number:03d}" for number in range(1, day.turns + 1)}:
        assert sum(word in fact for fact in drawn) == 1, word
