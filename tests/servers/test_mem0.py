"""Mem0's library keeps the contract of every provider: the real one, in its process, with a stub for its model."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import tidy
from tests.provider_backend import BackEnd
from tests.provider_faults import PATIENT, FaultDays
from tests.provider_outage import BadDay
from tests.provider_scenarios import ProviderScenarios
from tests.servers.door import Door
from tests.servers.mem0_house import House, child_of, mem0

from everthread.adapters.memory.mem0 import local_client as library
from everthread.adapters.memory.mem0.provider import Mem0
from everthread.memory.delivery import Limits
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract

# The first of them may have to install it.
pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with mem0(tmp_path / "mem0") as house:
        yield house


class HangsWhole:
    """Everything that the door can do. What hangs is the library itself, and not only its model."""

    def __init__(self, door: Door, provider: Mem0) -> None:
        self._provider = provider
        self.fail_next, self.reject_next, self.lose_next = door.fail_next, door.reject_next, door.lose_next
        self._heal = door.heal

    def hang(self) -> None:
        os.kill(child_of(self._provider), signal.SIGSTOP)

    def heal(self) -> None:
        os.kill(child_of(self._provider), signal.SIGCONT)
        self._heal()


class TestMem0(ProviderContract):
    @pytest.fixture
    def settings(self, house: House) -> dict[str, Any]:
        return house.settings()

    @pytest.fixture
    def provider(self) -> Mem0:
        return tidy(Mem0)

    @pytest.fixture
    def effects(self, house: House) -> EffectsOf:
        return lambda provider: house.held()

    @pytest.fixture
    def faults(self, house: House, provider: Mem0) -> Faults:
        return HangsWhole(house.door, provider)


class TestScenarios(ProviderScenarios, BadDay, FaultDays):
    @pytest.fixture
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> Limits:
        """On a day of faults it does not wait for its model as long as it would."""
        monkeypatch.setattr(library, "REQUEST_S_MAX", 1.0)
        return PATIENT

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a busy machine its process takes many seconds to start."""
        monkeypatch.setattr("tests.runtime.PATIENCE_S", 60.0)

    @pytest.fixture
    def back_end(self, house: House) -> BackEnd:
        return house.back_end()
