"""Test Honcho against the provider contract, with a fake of its server."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.fakes.honcho import FakeHoncho

from everthread.adapters.memory.honcho.codec import our_session_id
from everthread.adapters.memory.honcho.provider import Honcho
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract
from everthread.testing.recording_provider import StoredEntry


def held(fake: FakeHoncho) -> list[StoredEntry]:
    """Contents of the server: both sides of a turn as one effect, notes, and the close position of each session."""
    found: dict[Any, StoredEntry] = {}
    times: Counter[Any] = Counter()
    for one in fake.messages:
        about = one["metadata"]
        if about.get("undone"):
            continue
        # The session identifies the owner. A duplicate is a second effect.
        session = our_session_id(one["session_id"])
        times[session, about["seq"], about["part"]] += 1
        place = (session, about["seq"], times[session, about["seq"], about["part"]])
        before = found.get(place)
        text = f"{before.text}\n{one['content']}" if before else one["content"]
        found[place] = StoredEntry(session, about["kind"], text)
    notes = [
        StoredEntry(our_session_id(one["session_id"]), "note", one["content"])
        for one in fake.conclusions
        if (one["session_id"] or "").startswith("n__")
    ]
    closes = [
        StoredEntry(our_session_id(one["id"]), "close", str(one["metadata"]["closed_through"]))
        for one in fake.sessions.values()
        if "closed_through" in one["metadata"]
    ]
    return [*found.values(), *notes, *closes]


class TestHoncho(ProviderContract):
    @pytest.fixture
    def fake(self) -> Iterator[FakeHoncho]:
        with FakeHoncho(key="k-1234") as fake:
            yield fake

    @pytest.fixture
    def settings(self, fake: FakeHoncho) -> dict[str, Any]:
        return {"url": fake.address, "workspace": "everthread", "api_key": "k-1234"}

    @pytest.fixture
    def provider(self) -> Honcho:
        return close_with_loop(Honcho)

    @pytest.fixture
    def effects(self, fake: FakeHoncho) -> EffectsOf:
        return lambda provider: held(fake)

    @pytest.fixture
    def faults(self, fake: FakeHoncho) -> Faults:
        return fake


class TestHonchoThatTakesItsTime(TestHoncho):
    """Conclusions arrive late, and deleted data stays for a while."""

    @pytest.fixture
    def fake(self) -> Iterator[FakeHoncho]:
        with FakeHoncho(key="k-1234", derives_s=0.2, deletes_s=0.3) as fake:
            yield fake

    @pytest.fixture
    def settles_s(self) -> float:
        return 2.0
