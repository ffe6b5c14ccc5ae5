"""Honcho and Supermemory in a whole Everthread, against fakes of their servers."""

from collections.abc import Iterator

import pytest
from tests.back_end import BackEnd
from tests.bad_day import BadDay
from tests.contract.test_honcho import held as held_by_honcho
from tests.contract.test_supermemory import held as held_by_supermemory
from tests.provider_scenarios import ProviderScenarios

from everthread.adapters.memory.honcho.wording import session_name
from everthread.testing.fake_honcho import FakeHoncho
from everthread.testing.fake_supermemory import FakeSupermemory


class OnHoncho:
    @pytest.fixture
    def back_end(self) -> Iterator[BackEnd]:
        with FakeHoncho(key="k-1234", derives_s=0.1, deletes_s=0.1) as fake:
            yield BackEnd(
                "everthread.adapters.memory.honcho:Honcho",
                {"url": fake.address, "workspace": "everthread", "api_key": "k-1234"},
                fake,
                lambda: held_by_honcho(fake),
                settles_s=2.0,
                parent_of=lambda session: fake.sessions[session_name(session)]["metadata"].get("parent", ""),
                tool=("honcho_search", "query"),
            )


class OnSupermemory:
    @pytest.fixture
    def back_end(self) -> Iterator[BackEnd]:
        with FakeSupermemory(key="k-1234", takes_in_s=0.1) as fake:
            yield BackEnd(
                "everthread.adapters.memory.supermemory:Supermemory",
                {"url": fake.address, "namespace": "everthread", "api_key": "k-1234"},
                fake,
                lambda: held_by_supermemory(fake),
                settles_s=2.0,
                keeps_closes=False,
                tool=("supermemory_search", "query"),
            )


class TestABadDayWithHoncho(OnHoncho, BadDay):
    pass


class TestABadDayWithSupermemory(OnSupermemory, BadDay):
    pass


class TestScenariosWithHoncho(OnHoncho, ProviderScenarios):
    pass


class TestScenariosWithSupermemory(OnSupermemory, ProviderScenarios):
    pass
