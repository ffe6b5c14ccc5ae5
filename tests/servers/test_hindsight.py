"""Hindsight keeps the contract of every provider: the real server, on a PostgreSQL of its own."""

import asyncio
import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.servers.door import Door
from tests.servers.hindsight_house import House, hindsight
from tests.tidy import tidy

from everthread.adapters.memory.hindsight import Hindsight
from everthread.domain.errors import Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.testing.provider_contract import EffectsOf, Faults, ProviderContract
from everthread.testing.recording import Effect

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

KINDS = {"work": "delegation"}
SAID = ("bees live in Aarhus", "boat is called Larkspur", "piano is from Leipzig", "dog is called Bruno")
KEEPS = r"POST /v1/default/banks/[^/]+/memories"


def asked(address: str, path: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(address + path, method=method), timeout=30) as answer:
        return json.loads(answer.read())


def documents(address: str, prefix: str) -> list[dict[str, Any]]:
    """All that the server holds in the banks whose names begin so, oldest first."""
    found: list[dict[str, Any]] = []
    for bank in asked(address, "/v1/default/banks")["banks"]:
        if bank["bank_id"].startswith(prefix):
            path = f"/v1/default/banks/{quote(bank['bank_id'], safe='')}/documents"
            ids = [one["id"] for one in asked(address, f"{path}?limit=1000")["items"]]
            found += [asked(address, f"{path}/{quote(each, safe='')}") for each in ids]
    return sorted(found, key=lambda one: (one["created_at"], one["id"]))


def held(address: str, prefix: str) -> list[Effect]:
    effects: list[Effect] = []
    for one in documents(address, prefix):
        about = one["document_metadata"]
        turn = int(about["turn"]) if "turn" in about else None
        kind: str = KINDS.get(about["kind"], about["kind"])
        effects.append(Effect(about["session"], kind, one["original_text"], turn=turn))
    return effects


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with hindsight() as house:
        yield house


@pytest.fixture
def prefix() -> str:
    """Banks of this test alone."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def door(house: House) -> Iterator[Door]:
    with Door(house.address, KEEPS) as door:
        yield door


@pytest.fixture
def settings(door: Door, prefix: str) -> dict[str, Any]:
    return {"address": door.address, "bank": prefix, "profile": "main"}


class TestHindsight(ProviderContract):
    @pytest.fixture
    def settings(self, door: Door, prefix: str) -> dict[str, Any]:
        return {"address": door.address, "bank": prefix, "profile": "main"}

    @pytest.fixture
    def provider(self) -> Hindsight:
        return tidy(Hindsight)

    @pytest.fixture
    def effects(self, house: House, prefix: str) -> EffectsOf:
        return lambda provider: held(house.address, prefix)

    @pytest.fixture
    def faults(self, door: Door) -> Faults:
        return door

    @pytest.fixture
    def settles_s(self) -> float:
        return 5.0


# What Hindsight makes easy to lose ------------------------------------------------------------------------------------


class Talk:
    """One conversation with a provider, an entry at a time."""

    def __init__(self, provider: Hindsight, session_id: str, owner: str = "ann") -> None:
        self.provider = provider
        self.ref = SessionRef(session_id, 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, owner)
        self.seq = self.turns = 0

    def delivery(self, attempt: int = 1, replay: int = 0) -> Delivery:
        key = f"{self.ref.session_id}:{self.seq}:hindsight:{replay}"
        return Delivery(key, self.seq, attempt, replay)

    async def say(self, text: str, *, again: bool = False, replay: int = 0) -> None:
        if not again:
            self.seq, self.turns = self.seq + 1, self.turns + 1
        delivery = self.delivery(2 if again else 1, replay)
        await self.provider.sync_turn(text, "I see.", ref=self.ref, delivery=delivery, turn=self.turns, at=86_400.0)

    async def open(self, parent: str = "") -> None:
        self.seq += 1
        delivery = self.delivery()
        await self.provider.on_session_switch(
            self.ref.session_id, parent_session_id=parent, ref=self.ref, delivery=delivery
        )

    async def note(self, content: str, version: int, action: str = "replace") -> None:
        self.seq += 1
        about = {"note_id": "n1", "version": version, "turn_id": None, "at": 86_400.0}
        await self.provider.on_memory_write(action, "user", content, about, ref=self.ref, delivery=self.delivery())

    async def forget(self, scope: ForgetScope, text: str = "", note_id: str = "") -> None:
        self.seq += 1
        await self.provider.forget(scope, ref=self.ref, delivery=self.delivery(), text=text, note_id=note_id)


@pytest.fixture
def bank(prefix: str) -> str:
    return f"/v1/default/banks/{prefix}__main__ann"


async def ready(settings: dict[str, Any]) -> Hindsight:
    provider = tidy(Hindsight)
    await provider.initialize(**settings)
    return provider


def texts(house: House, prefix: str) -> dict[str, str]:
    return {one["id"]: one["original_text"] for one in documents(house.address, prefix)}


def operations(house: House, bank: str) -> int:
    return asked(house.address, f"{bank}/operations?limit=100")["total"]


def memories(house: House, bank: str) -> list[str]:
    """The ids: a memory that was made anew has another."""
    return sorted(one["id"] for one in asked(house.address, f"{bank}/memories/list?limit=100")["items"])


async def test_a_redelivered_turn_is_no_work_for_the_server(house: House, settings: dict[str, Any], bank: str) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees in Aarhus")
    before, work = memories(house, bank), operations(house, bank)
    assert before
    await talk.say("I keep bees in Aarhus", again=True)
    assert (memories(house, bank), operations(house, bank)) == (before, work)
    # Somebody who asks for a replay wants it done, and has no more than before in the end.
    await talk.say("I keep bees in Aarhus", again=True, replay=1)
    assert operations(house, bank) > work
    assert len(memories(house, bank)) == len(before)


async def test_a_session_that_is_resumed_goes_on_and_erases_nothing(
    house: House, settings: dict[str, Any], prefix: str
) -> None:
    provider = await ready(settings)
    old, new = Talk(provider, "old"), Talk(provider, "new")
    await old.say("I keep bees")
    await new.say("I paint hives")
    await old.say("I sell honey")
    assert texts(house, prefix) == {
        "old/0001": "user: I keep bees\nassistant: I see.",
        "new/0001": "user: I paint hives\nassistant: I see.",
        "old/0002": "user: I sell honey\nassistant: I see.",
    }


async def test_a_parent_is_kept_only_if_there_is_one(house: House, settings: dict[str, Any], prefix: str) -> None:
    provider = await ready(settings)
    child, single = Talk(provider, "child"), Talk(provider, "single")
    await single.open()
    await single.say("I keep bees")
    await child.open("single")
    await child.say("and hives")
    about = {one["id"]: one["document_metadata"] for one in documents(house.address, prefix)}
    assert [each for each, metadata in about.items() if "parent" in metadata] == ["child/opened"]
    assert about["child/opened"]["parent"] == "single"
    # It is there for those who look, and in no prompt.
    items = await provider.prefetch("conversation single continues", ref=child.ref, limit=10)
    assert not [item for item in items if "continues" in item.text]


async def test_what_is_recalled_says_where_it_was_said(settings: dict[str, Any]) -> None:
    talk = Talk(await ready(settings), "s:1/x")
    await talk.say("nothing much")
    await talk.say("I keep bees in Aarhus")
    found = await talk.provider.prefetch("bees Aarhus", ref=talk.ref, limit=1)
    assert [(item.session_id, item.turn, item.at) for item in found] == [("s:1/x", 2, 86_400.0)]
    assert await talk.provider.prefetch("?!", ref=talk.ref, limit=5) == ()
    assert await talk.provider.prefetch("bees " * 2_000, ref=talk.ref, limit=5)


async def test_what_the_server_fails_to_take_in_is_taken_in_later(
    house: House, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    """It says yes, and fails afterwards: such a turn counts as delivered only when it is really there."""
    talk = Talk(await ready(settings), "s1")
    await talk.say("I keep bees")
    house.vectors.is_broken = True
    try:
        with pytest.raises(Unavailable):
            await talk.say("I sell honey")
        assert list(texts(house, prefix)) == ["s1/0001"]
        other = Talk(talk.provider, "s2")
        with pytest.raises(Unavailable):
            await other.say("I planted larkspur")
    finally:
        house.vectors.is_broken = False
    await talk.say("I sell honey", again=True)
    assert list(texts(house, prefix)) == ["s1/0001", "s1/0002"]
    # What never was taken in is forgotten too.
    assert "larkspur" in everything(house, bank)
    await other.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(house, bank)


async def test_a_note_that_comes_late_does_not_replace_a_newer_one(
    house: House, settings: dict[str, Any], prefix: str
) -> None:
    provider = await ready(settings)
    one, other = Talk(provider, "one"), Talk(provider, "other")
    await one.note("keeps seven hives", version=3)
    await other.note("keeps two hives", version=2)
    assert texts(house, prefix) == {"note/n1": "keeps seven hives"}
    await other.note("", version=4, action="remove")
    assert texts(house, prefix) == {}


async def test_a_forgotten_fact_leaves_its_words_nowhere_and_the_rest_stays(
    house: House, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    talk = Talk(await ready(settings), "s1")
    await talk.note("the code is quincunx", version=1)
    await talk.say("remember that the code is quincunx, and that I keep bees")
    await talk.forget(ForgetScope.FACT, "the code is quincunx", "n1")
    assert texts(house, prefix) == {
        "s1/0001": "user: remember that [forgotten], and that I keep bees\nassistant: I see."
    }
    assert "quincunx" not in everything(house, bank)


async def test_of_a_forgotten_session_the_server_keeps_no_word(
    house: House, settings: dict[str, Any], prefix: str, bank: str
) -> None:
    provider = await ready(settings)
    gone, stays = Talk(provider, "gone"), Talk(provider, "stays")
    await stays.say("I sell honey")
    await gone.say("I planted larkspur")
    await gone.say("and larkspur again")
    await provider.on_session_switch("gone", rewound=True, turns=(2,), ref=gone.ref, delivery=gone.delivery())
    assert "larkspur" in everything(house, bank)
    await gone.forget(ForgetScope.SESSION)
    assert "larkspur" not in everything(house, bank)
    assert list(texts(house, prefix)) == ["stays/0001"]


def everything(house: House, bank: str) -> str:
    """Documents, memories, and what was asked of the server, as it has kept that."""
    found = [asked(house.address, f"{bank}/{what}?limit=100") for what in ("documents", "memories/list")]
    for one in asked(house.address, f"{bank}/operations?limit=100")["operations"]:
        found.append(asked(house.address, f"{bank}/operations/{one['id']}?include_payload=true"))
    return json.dumps(found)


async def test_it_says_how_it_is_and_its_tools_answer(settings: dict[str, Any], door: Door, prefix: str) -> None:
    talk = Talk(await ready(settings), "s1")
    assert await talk.provider.health() == "ok"
    await talk.say("I keep bees")
    found = await talk.provider.handle_tool_call("hindsight_recall", {"query": "bees"}, ref=talk.ref)
    assert "I keep bees" in found
    door.fail_next()
    assert "503" in await talk.provider.health()


def test_the_official_client_finds_what_was_kept(house: House, settings: dict[str, Any], prefix: str) -> None:
    async def told() -> None:
        await Talk(await ready(settings), "s1").say("I keep bees in Aarhus")

    asyncio.run(told())
    program = (
        "import sys; from hindsight_client import Hindsight\n"
        "with Hindsight(base_url=sys.argv[1]) as client:\n"
        "    for one in client.recall(bank_id=sys.argv[2], query='bees').results:\n"
        "        print(one.document_id, one.metadata)\n"
    )
    command = [house.client, "-c", program, house.address, f"{prefix}__main__ann"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.startswith("s1/0001 ")
    assert "'session': 's1'" in said


class Worker:
    """A process on a home, which does as it is told."""

    def __init__(self, home: Path) -> None:
        program = Path(__file__).with_name("bad_day_worker.py")
        self.process = subprocess.Popen(
            [sys.executable, program, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, what: str, text: str = "") -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, text]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process is gone"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_bad_day(house: House, prefix: str, tmp_path: Path) -> None:
    """A turn, a server that hangs, a new session, the old one again, kill -9, a restart, the server back."""
    table = f'[memory]\nproviders = ["hindsight"]\n[memory.hindsight]\naddress = "{house.address}"\nbank = "{prefix}"\n'
    (tmp_path / "config.toml").write_text(table)
    worker = Worker(tmp_path)
    try:
        first = worker.do("say", "my bees live in Aarhus")
        house.freeze()
        second = worker.do("new")
        assert worker.do("say", "my boat is called Larkspur") == second != first
        assert worker.do("resume", first) == first
        assert worker.do("say", "my piano is from Leipzig") == first
        worker.kill()
        worker = Worker(tmp_path)
        assert worker.do("say", "my dog is called Bruno") == first
        house.thaw()
        assert worker.do("drain", "120")
        recalled = {
            what: worker.do("recall", what)[0] for what in ("bees Aarhus", "boat", "piano Leipzig", "dog Bruno")
        }
    finally:
        house.thaw()
        worker.kill()
    assert {what: (session, turn) for what, (session, turn, _) in recalled.items()} == {
        "bees Aarhus": (first, 1),
        "boat": (second, 1),
        "piano Leipzig": (first, 2),
        "dog Bruno": (first, 3),
    }
    said = [one.text.partition("\n")[0] for one in held(house.address, prefix) if one.kind == "turn"]
    assert sorted(said) == sorted(f"user: my {what}" for what in SAID)
