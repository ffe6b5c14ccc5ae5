"""Fake back ends for the provider scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everthread.adapters.memory.honcho.codec import session_name
from tests.contract.test_honcho import held as held_by_honcho
from tests.contract.test_supermemory import held as held_by_supermemory
from tests.fakes.honcho import FakeHoncho
from tests.fakes.mem0 import FakeMem0
from tests.fakes.supermemory import FakeSupermemory
from tests.mem0_entries import parent_of
from tests.mem0_entries import stored_entries as held_by_mem0
from tests.provider_backend import ProviderBackend


@contextmanager
def honcho() -> Iterator[ProviderBackend]:
    with FakeHoncho(key="k-1234", derives_s=0.1, deletes_s=0.1) as fake:
        yield ProviderBackend(
            "everthread.adapters.memory.honcho.provider:Honcho",
            {"url": fake.address, "workspace": "everthread", "api_key": "k-1234"},
            fake,
            lambda: held_by_honcho(fake),
            settles_s=2.0,
            parent_of=lambda session: fake.sessions[session_name(session)]["metadata"].get("parent", ""),
            tool=("honcho_search", "query"),
        )


@contextmanager
def mem0(*, infer: bool = True) -> Iterator[ProviderBackend]:
    with FakeMem0(key="k-1234", takes_in_s=0.05, deletes_s=0.1) as fake:
        yield ProviderBackend(
            "everthread.adapters.memory.mem0.provider:Mem0",
            {"mode": "platform", "url": fake.address, "api_key": "k-1234", "infer": infer},
            fake,
            lambda: held_by_mem0(fake.memories),
            settles_s=2.0,
            parent_of=lambda session: parent_of(session, fake.memories),
            keeps_closes=False,
            tool=("mem0_search", "query"),
        )


@contextmanager
def supermemory() -> Iterator[ProviderBackend]:
    with FakeSupermemory(key="k-1234", takes_in_s=0.1) as fake:
        yield ProviderBackend(
            "everthread.adapters.memory.supermemory.provider:Supermemory",
            {"url": fake.address, "namespace": "everthread", "api_key": "k-1234"},
            fake,
            lambda: held_by_supermemory(fake),
            settles_s=2.0,
            keeps_closes=False,
            tool=("supermemory_search", "query"),
        )
