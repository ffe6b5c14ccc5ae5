"""The fake provider of the testing kit keeps the contract of every provider, and so do providers of other shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, SessionKey, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from everthread.testing import in_loop
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract
from everthread.testing.recording_provider import RecordingProvider, StoredEntry

REF = SessionRef("s1", 0, SessionKey("main", "cli", ChatType.DM, "1"), 1, "ann")


class TestRecordingProvider(ProviderContract):
    @pytest.fixture
    def provider(self) -> RecordingProvider:
        return RecordingProvider()

    @pytest.fixture
    def effects(self) -> EffectsOf:
        return lambda provider: provider.effects()

    @pytest.fixture
    def faults(self, provider: RecordingProvider) -> Faults:
        return provider

    @in_loop
    async def test_a_slow_provider_waits_before_each_call(self) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        provider = RecordingProvider("slow", sleep=sleep)
        provider.slow(5.0)
        await provider.sync_turn("hello", "hi", ref=REF, delivery=Delivery("k", 1))
        provider.heal()
        await provider.sync_turn("hello", "hi", ref=REF, delivery=Delivery("k2", 2))
        assert slept == [5.0]
        assert len(provider.effects("s1")) == 2
        assert [call.hook for call in provider.calls] == ["sync_turn", "sync_turn"]


class NotesOnly(MemoryProvider):
    """Plain functions, three hooks, no recall: the least that a provider may be."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "notes-only"
        self.capabilities = Capability.DEDUPLICATES
        self.scorecard = Scorecard("done", "done", "it has no way to delete what it was given")
        self.rows: dict[str, StoredEntry] = {}

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self.rows.setdefault(delivery.key, StoredEntry(ref.session_id, "turn", user))

    def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> None:
        self.rows.setdefault(delivery.key, StoredEntry(ref.session_id, "note", content))


class TestPlainProvider(ProviderContract):
    @pytest.fixture
    def provider(self) -> NotesOnly:
        return NotesOnly()

    @pytest.fixture
    def effects(self) -> EffectsOf:
        async def effects(provider: NotesOnly) -> Sequence[StoredEntry]:
            return list(provider.rows.values())

        return effects


class Older:
    """Not even of our class, and knows neither `ref` by name nor most of the hooks."""

    name = "older"
    capabilities = Capability.RECALL
    scorecard = Scorecard("done", "done", "its back end can't delete anything")

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, StoredEntry]] = {}

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery) -> None:
        self.rows.setdefault(delivery.key, (ref.owner, StoredEntry(ref.session_id, "turn", user)))

    def prefetch(self, query: str, ref: SessionRef) -> list[RecallItem]:
        found = [one.text for owner, one in self.rows.values() if owner == ref.owner]
        return [RecallItem(text) for text in found if set(query.split()) & set(text.split())][:2]


class TestOlderProvider(ProviderContract):
    @pytest.fixture
    def provider(self) -> Older:
        return Older()

    @pytest.fixture
    def effects(self, provider: Older) -> EffectsOf:
        return lambda _: [one for _, one in provider.rows.values()]
