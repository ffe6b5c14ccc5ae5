"""Test the fakes of memory services with the official client libraries, so that the fakes match the real services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import honcho
import httpx
import pytest
import supermemory
from honcho.http.exceptions import NotFoundError, UnprocessableEntityError
from supermemory.errors.not_found_error import NotFoundError as NoSuchDocument
from tests.fakes.honcho import FakeHoncho
from tests.fakes.supermemory import FakeSupermemory

from everthread.adapters.memory.honcho.codec import agent_peer, session_name, user_peer
from everthread.adapters.memory.honcho.provider import Honcho
from everthread.adapters.memory.supermemory.codec import namespace, turn_id
from everthread.adapters.memory.supermemory.provider import Supermemory
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionKey, SessionRef

REF = SessionRef("s1", 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, "ann")


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def web() -> Iterator[httpx.Client]:
    with httpx.Client() as web:
        yield web


def of_honcho(fake: FakeHoncho, web: httpx.Client) -> honcho.Honcho:
    known = {"api_key": "k-1234", "workspace_id": "everthread", "max_retries": 0}
    return honcho.Honcho(base_url=fake.address, http_client=web, **known)


def of_supermemory(fake: FakeSupermemory, web: httpx.Client) -> supermemory.Supermemory:
    return supermemory.Supermemory(base_url=fake.address, api_key="k-1234", max_retries=0, http_client=web)


def test_the_honcho_client_writes_messages_and_finds_them(web: httpx.Client) -> None:
    with FakeHoncho(key="k-1234") as fake:
        client = of_honcho(fake, web)
        ann, session = client.peer("ann"), client.session("trip")
        session.add_messages([ann.message("I keep bees", metadata={"seq": 1}), ann.message("in Aarhus")])
        assert [one.content for one in session.messages()] == ["I keep bees", "in Aarhus"]
        assert [one.content for one in session.messages(filters={"metadata": {"seq": 1}})] == ["I keep bees"]
        assert [one.content for one in client.search("bees")] == ["I keep bees"]
        assert [one.content for one in client.search("bees", filters={"peer_id": {"in": ["bob"]}})] == []
        assert "bees" in str(ann.chat("bees"))
        assert "Aarhus" in ann.representation()
        assert client.queue_status().pending_work_units == 0


def test_the_honcho_client_appends_repeated_messages(web: httpx.Client) -> None:
    with FakeHoncho(key="k-1234") as fake:
        client = of_honcho(fake, web)
        message = client.peer("ann").message("I keep bees")
        for _ in range(2):
            client.session("trip").add_messages([message])
        assert len(fake.messages) == 2


def test_the_honcho_client_is_refused_too_many_or_too_long_messages(web: httpx.Client) -> None:
    with FakeHoncho(key="k-1234") as fake:
        client = of_honcho(fake, web)
        ann, session = client.peer("ann"), client.session("trip")
        for many in ([ann.message("x")] * 101, [ann.message("x" * 25_001)]):
            with pytest.raises(UnprocessableEntityError):
                session.add_messages(many)
        assert fake.messages == []


def test_the_honcho_client_deletes_a_session_permanently(web: httpx.Client) -> None:
    with FakeHoncho(key="k-1234", deletes_s=0.1) as fake:
        client = of_honcho(fake, web)
        session = client.session("trip", metadata={"owner": "ann"})
        session.add_messages([client.peer("ann").message("I keep bees")])
        assert [one.id for one in client.sessions(filters={"metadata": {"owner": "ann"}})] == ["trip"]
        session.delete()
        until(lambda: not fake.sessions)
        assert fake.messages == []
        with pytest.raises(NotFoundError):
            session.add_messages([client.peer("ann").message("again")])
        with pytest.raises(NotFoundError):
            client.session("trip", metadata={})


def test_the_honcho_client_reads_data_written_by_everthread(web: httpx.Client) -> None:
    async def write(address: str) -> None:
        provider = Honcho()
        await provider.initialize(url=address, workspace="everthread", api_key="k-1234")
        await provider.sync_turn("I keep bees", "How many?", ref=REF, delivery=Delivery("k", 1), turn=1, at=1.0)
        about = {"note_id": "n1"}
        await provider.on_memory_write("add", "user", "keeps bees", about, ref=REF, delivery=Delivery("k2", 2))
        await provider.shutdown()

    with FakeHoncho(key="k-1234", derives_s=60) as fake:
        asyncio.run(write(fake.address))
        client = of_honcho(fake, web)
        messages = list(client.session(session_name("s1")).messages())
        assert [(one.peer_id, one.content) for one in messages] == [
            (user_peer("ann"), "I keep bees"),
            (agent_peer("ann"), "How many?"),
        ]
        assert messages[0].metadata["turn"] == 1
        [concluded] = client.peer(user_peer("ann")).conclusions.query("bees")
        assert concluded.content == "keeps bees"


def test_the_supermemory_client_adds_appends_replaces_and_deletes(web: httpx.Client) -> None:
    with FakeSupermemory(key="k-1234", takes_in_s=0.1) as fake:
        client = of_supermemory(fake, web)
        assert client.add("ann", content="I keep bees", id="d1", metadata={"session": "s1"}).status == "queued"
        assert client.search("ann", query="bees").results == []
        until(lambda: client.search("ann", query="bees").results)
        assert client.add("ann", content="I keep bees", id="d1").status == "done"
        assert client.add("ann", content="and wasps", id="d1").status == "queued"
        assert fake.spaces["ann"]["d1"]["given"] == "I keep bees\nand wasps"
        client.documents.update("ann", "d1", content="only ants")
        until(lambda: client.documents.get("ann", "d1").content == "only ants")
        listed = client.list("ann", "documents", filter={"field": "session", "operator": "eq", "value": "s1"})
        assert [one.id for one in listed.documents] == ["d1"]
        assert client.search("bob", query="ants").results == []
        gone = client.documents.delete("ann", ids=["d1", "d2"])
        assert (gone.count, [one.id for one in gone.errors]) == (1, ["d2"])
        with pytest.raises(NoSuchDocument):
            client.documents.get("ann", "d1")


def test_the_supermemory_client_reads_data_written_by_everthread(web: httpx.Client) -> None:
    async def write(address: str) -> None:
        provider = Supermemory()
        await provider.initialize(url=address, namespace="everthread", api_key="k-1234")
        await provider.sync_turn("I keep bees", "How many?", ref=REF, delivery=Delivery("k", 1), turn=1, at=1.0)
        await provider.shutdown()

    with FakeSupermemory(key="k-1234") as fake:
        asyncio.run(write(fake.address))
        client = of_supermemory(fake, web)
        [result] = client.search(namespace("everthread", "ann"), query="bees").results
        assert result.chunk == "user: I keep bees\nassistant: How many?"
        assert client.documents.get(namespace("everthread", "ann"), turn_id("s1", 1)).metadata["session"] == "s1"
        assert client.profile(namespace("everthread", "ann")).profile.static == []
        assert client.namespaces.delete(namespace("everthread", "ann")).status == "deleted"
        assert fake.spaces == {}
