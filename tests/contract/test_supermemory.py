"""Test Supermemory against the provider contract, with a fake of its service."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.fakes.supermemory import FakeSupermemory

from everthread.adapters.memory.supermemory.provider import Supermemory
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract
from everthread.testing.recording_provider import StoredEntry


def held(fake: FakeSupermemory) -> list[StoredEntry]:
    """Documents that were added and not deleted, processed or not."""
    return [
        StoredEntry(one["metadata"]["session"], one["metadata"]["kind"], one["given"])
        for documents in fake.spaces.values()
        for one in sorted(documents.values(), key=lambda one: one["id"])
    ]


class TestSupermemory(ProviderContract):
    @pytest.fixture
    def fake(self) -> Iterator[FakeSupermemory]:
        with FakeSupermemory(key="k-1234") as fake:
            yield fake

    @pytest.fixture
    def settings(self, fake: FakeSupermemory) -> dict[str, Any]:
        return {"url": fake.address, "namespace": "everthread", "api_key": "k-1234"}

    @pytest.fixture
    def provider(self) -> Supermemory:
        return close_with_loop(Supermemory)

    @pytest.fixture
    def effects(self, fake: FakeSupermemory) -> EffectsOf:
        return lambda provider: held(fake)

    @pytest.fixture
    def faults(self, fake: FakeSupermemory) -> Faults:
        return fake


class TestSupermemoryWithAQueue(TestSupermemory):
    """The service queues documents. They are not searchable and have no text until processed."""

    @pytest.fixture
    def fake(self) -> Iterator[FakeSupermemory]:
        with FakeSupermemory(key="k-1234", takes_in_s=0.1) as fake:
            yield fake

    @pytest.fixture
    def settles_s(self) -> float:
        return 2.0
