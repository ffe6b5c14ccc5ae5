"""Test the Mem0 platform against the provider contract, with a fake of the platform."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.fakes.mem0 import FakeMem0
from tests.mem0_entries import stored_entries

from everthread.adapters.memory.mem0.provider import Mem0
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract


class TestMem0(ProviderContract):
    """The platform extracts facts."""

    infer = True

    @pytest.fixture
    def fake(self) -> Iterator[FakeMem0]:
        with FakeMem0(key="k-1234") as fake:
            yield fake

    @pytest.fixture
    def settings(self, fake: FakeMem0) -> dict[str, Any]:
        return {"mode": "platform", "url": fake.address, "api_key": "k-1234", "infer": self.infer}

    @pytest.fixture
    def provider(self) -> Mem0:
        return close_with_loop(Mem0)

    @pytest.fixture
    def effects(self, fake: FakeMem0) -> EffectsOf:
        return lambda provider: stored_entries(fake.memories)

    @pytest.fixture
    def faults(self, fake: FakeMem0) -> Faults:
        return fake


class TestMem0WordForWord(TestMem0):
    """The platform stores texts verbatim, and duplicates unless the provider searches first."""

    infer = False


class TestMem0WithAQueue(TestMem0WordForWord):
    """The platform queues additions and deletions."""

    @pytest.fixture
    def fake(self) -> Iterator[FakeMem0]:
        with FakeMem0(key="k-1234", takes_in_s=0.05, deletes_s=0.1) as fake:
            yield fake

    @pytest.fixture
    def settles_s(self) -> float:
        return 2.0
