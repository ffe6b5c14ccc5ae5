"""Hindsight as people run it: with a model that draws facts from what is said, and conclusions from the facts.

The model is our stub; it takes each line that a person said for a fact.
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
from tests.servers.proxy import Door

from everthread.adapters.memory.hindsight.provider import Hindsight
from everthread.domain.boundary import New, Resume
from everthread.domain.errors import ProviderError, Unavailable
from everthread.domain.events import ForgetScope
from everthread.memory.delivery_results import Limits

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

LIMITS = Limits(attempt_s_max=30.0, attempts_max=2, backoff_s=0.05, backoff_s_max=0.3, breaker_s=0.2)
SLOW_S = 1.5
"""How long the model thinks about a request of which nobody hears any more."""


@pytest.fixture(scope="module")
def core() -> Iterator[HindsightServer]:
    with hindsight(extracting=True) as core:
        yield core


@pytest.fixture
def prefix(core: HindsightServer) -> Iterator[str]:
    """Banks of this test alone."""
    yield f"t{uuid.uuid4().hex[:12]}"
    core.model.heal()


@pytest.fixture
def door(core: HindsightServer) -> Iterator[Door]:
    with Door(core.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: Door, prefix: str) -> dict[str, Any]:
    return {"address": door.address, "bank": prefix, "profile": "main"}


@pytest.fixture
def bank(prefix: str) -> str:
    return f"/v1/default/banks/{prefix}__main__ann"


def facts(core: HindsightServer, bank: str) -> dict[str, list[str]]:
    """What the model has drawn from what was said, and what it has concluded."""
    found: dict[str, list[str]] = {}
    for one in asked(core.address, f"{bank}/memories/list?limit=1000")["items"]:
        found.setdefault(one["fact_type"], []).append(one["text"])
    return found


async def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.1)


async def settled(process: Process) -> None:
    """For longer than a house waits by itself: here is a server that takes its time."""
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
        # The bank is made with its first document.
        return False
    return any(one["document_id"] for one in listed)


async def test_facts_are_drawn_and_say_where_they_were_said(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("nothing much")
    await talk.say("I keep bees in Aarhus")
    drawn = facts(core, bank)["world"]
    assert any("I keep bees in Aarhus" in fact for fact in drawn)
    # What the assistant said is no fact: it was the model that chose, and not a cut through the text.
    assert not any("I see" in fact for fact in drawn)
    [item] = await talk.provider.prefetch("bees Aarhus", ref=talk.ref, limit=1)
    assert (item.session_id, item.turn, "bees" in item.text) == ("s1", 2, True)


async def test_a_redelivered_turn_asks_the_model_nothing(
    core: HindsightServer, settings: dict[str, Any], bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees in Aarhus")
    await until(lambda: "observation" in facts(core, bank))
    before, thought = facts(core, bank), core.model.asked["/v1/chat/completions"]
    await talk.say("I keep bees in Aarhus", again=True)
    await asyncio.sleep(0.5)
    assert (facts(core, bank), core.model.asked["/v1/chat/completions"]) == (before, thought)


async def test_a_resumed_session_goes_on_and_no_write_erases_a_fact_of_any(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    """Neither a later session, nor the old one that goes on, nor a write that the server breaks off in the middle."""
    provider = await ready(settings)
    old, new = Talk(provider, "old"), Talk(provider, "new")
    await old.say("I keep bees")
    await new.say("I paint hives")
    await new.note("has two ladders", version=1)
    core.model.refuse("honey")
    with pytest.raises(ProviderError):
        await old.say("I sell honey")
    # What is there already is told anew, and that fails: it stays as it was.
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


async def test_of_a_forgotten_session_no_fact_and_no_conclusion_is_left(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    gone, stays = Talk(provider, "gone"), Talk(provider, "stays")
    await stays.say("I sell honey")
    await gone.say("I planted larkspur")
    await until(lambda: "larkspur" in json.dumps(facts(core, bank).get("observation", [])))
    await gone.forget(ForgetScope.SESSION)
    # What it makes of what is left may take a moment; nothing of that has the word in it.
    await asyncio.sleep(1.0)
    assert "larkspur" not in everything(core, bank)
    assert list(texts(core, prefix)) == ["stays/0001"]
    assert any("I sell honey" in fact for fact in facts(core, bank)["world"])


# Forgotten while the server is at work on it --------------------------------------------------------------------------


@asynccontextmanager
async def under_way(core: HindsightServer, bank: str, saying: Awaitable[None]) -> AsyncIterator[None]:
    """The server has taken something to work on, and whoever asked for that is gone."""
    core.model.delay(SLOW_S)
    task = asyncio.ensure_future(saying)
    await until(lambda: at_work(core, bank))
    task.cancel()
    await asyncio.wait({task})
    yield
    core.model.heal()
    # Whatever it was about to bring back has come by now.
    await asyncio.sleep(2 * SLOW_S + 1)


async def test_a_session_that_is_forgotten_while_the_server_is_at_work_on_it_does_not_come_back(
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


async def test_a_fact_that_is_forgotten_while_the_server_is_at_work_on_it_does_not_come_back(
    core: HindsightServer, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    talk, desk = Talk(provider, "s1"), Talk(provider, "notes:ann")
    await desk.say("I sell honey")
    async with under_way(core, bank, talk.say("the code is quincunx, and I keep bees")):
        # Its entry stands in another session, and waits for nothing of this one.
        await desk.forget(ForgetScope.FACT, "the code is quincunx")
        assert "quincunx" not in everything(core, bank)
    assert "quincunx" not in everything(core, bank)
    assert texts(core, prefix)["s1/0001"] == "user: [forgotten], and I keep bees\nassistant: I see."


async def test_a_person_who_is_forgotten_while_the_server_is_at_work_on_something_of_theirs_does_not_come_back(
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


async def test_what_the_server_does_not_get_done_is_forgotten_later_and_said_to_wait(
    core: HindsightServer, settings: dict[str, Any], bank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.adapters.memory.hindsight.client.INGEST_S_MAX", 0.3)
    talk = Talk(await ready(settings), "gone")
    async with under_way(core, bank, talk.say("I planted larkspur")):
        with pytest.raises(Unavailable, match="still ingesting"):
            await talk.forget(ForgetScope.SESSION)
    await talk.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(core, bank)


# A document that the server never takes in ----------------------------------------------------------------------------


async def test_what_the_server_never_takes_in_is_parked_and_named_and_the_rest_goes_on(
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
        # It is no outage, and nothing else was held up or parked because of it.
        assert status.breaker_open_until is None
    there = {one["original_text"].partition("\n")[0] for one in documents(core.address, prefix)}
    assert there == {"user: I keep bees", "user: I sell honey", "user: I paint hives"}
    shown = everthread(tmp_path, "memory", "status").stdout
    assert poisoned in shown.partition("Parked:")[2]
    assert other not in shown
    # And when the cause is gone, it can be told after all.
    core.model.heal()
    async with Process(tmp_path, close_with_loop(Hindsight), limits=LIMITS, settings=settings) as process:
        process.clock.ahead_s = 3600
        assert await process.memory.journal.retry("hindsight") == 1
        await settled(process)
    assert any("this is hemlock" in one["original_text"] for one in documents(core.address, prefix))


async def test_while_the_model_is_gone_nothing_is_parked(core: HindsightServer, prefix: str, tmp_path: Path) -> None:
    settings = {"hindsight": {"address": core.address, "bank": prefix, "profile": "main"}}
    async with Process(tmp_path, close_with_loop(Hindsight), limits=LIMITS, settings=settings) as process:
        await process.turn(CLI, "I keep bees")
        await settled(process)
        core.model.fail_next(10_000)
        session = (await process.turn(CLI, "I sell honey")).ref.session_id
        # Oftener than what is no outage may fail before it is parked.
        await tried(process, session, LIMITS.attempts_max + 1)
        [status] = await process.memory.journal.status()
        assert "could not ingest a document" in (status.last_error or "")
        assert (status.parked, status.lanes.waiting_entries) == ((), 1)
        core.model.heal()
        await process.later(60)
        await settled(process)
    assert len(documents(core.address, prefix)) == 2


async def test_after_faults_each_turn_and_each_of_its_facts_is_there_once(
    core: HindsightServer, door: Door, settings: dict[str, Any], prefix: str, tmp_path: Path
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
