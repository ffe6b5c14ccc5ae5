"""Mem0's library keeps the contract of every provider: the real one, in its process, with a stub for its model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.back_end import BackEnd
from tests.bad_day import BadDay
from tests.provider_scenarios import ProviderScenarios
from tests.servers.mem0_house import House, mem0
from tests.tidy import tidy

from everthread.adapters.memory.mem0 import Mem0
from everthread.testing.provider_contract import EffectsOf, Faults, ProviderContract

# The first of them may have to install it.
pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with mem0(tmp_path / "mem0") as house:
        yield house


class TestMem0(ProviderContract):
    """Facts are drawn."""

    infer = True

    @pytest.fixture
    def settings(self, house: House) -> dict[str, Any]:
        return house.settings(infer=self.infer)

    @pytest.fixture
    def provider(self) -> Mem0:
        return tidy(Mem0)

    @pytest.fixture
    def effects(self, house: House) -> EffectsOf:
        return lambda provider: house.held()

    @pytest.fixture
    def faults(self, house: House) -> Faults:
        return house.door


class TestMem0WordForWord(TestMem0):
    infer = False


class TestScenarios(ProviderScenarios, BadDay):
    @pytest.fixture
    def back_end(self, house: House) -> BackEnd:
        return house.back_end()
