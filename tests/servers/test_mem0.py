"""Test the real Mem0 library against the provider contract, in its own process, with a stub model."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.provider_backend import ProviderBackend
from tests.provider_faults import PATIENT, ProviderFaults
from tests.provider_outage import ProviderOutage
from tests.provider_scenarios import ProviderScenarios
from tests.servers.mem0_library import Mem0Library, child_of, mem0
from tests.servers.proxy import FaultProxyServer

from everthread.adapters.memory.mem0 import local_client as library
from everthread.adapters.memory.mem0.provider import Mem0
from everthread.memory.delivery_results import Limits
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract

# The first test may have to install it.
pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Mem0Library]:
    with mem0(tmp_path / "mem0") as core:
        yield core


class HangsWhole:
    """The proxy's faults, but `hang` stops the library itself and not only its model."""

    def __init__(self, door: FaultProxyServer, provider: Mem0) -> None:
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
    def settings(self, core: Mem0Library) -> dict[str, Any]:
        return core.settings()

    @pytest.fixture
    def provider(self) -> Mem0:
        return close_with_loop(Mem0)

    @pytest.fixture
    def effects(self, core: Mem0Library) -> EffectsOf:
        return lambda provider: core.stored_entries()

    @pytest.fixture
    def faults(self, core: Mem0Library, provider: Mem0) -> Faults:
        return HangsWhole(core.door, provider)


class TestScenarios(ProviderScenarios, ProviderOutage, ProviderFaults):
    @pytest.fixture
    def limits(self, monkeypatch: pytest.MonkeyPatch) -> Limits:
        """In fault runs, wait less for the model."""
        monkeypatch.setattr(library, "REQUEST_S_MAX", 1.0)
        return PATIENT

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a busy machine, the library's process takes many seconds to start."""
        monkeypatch.setattr("tests.runtime.PATIENCE_S", 60.0)

    @pytest.fixture
    def back_end(self, core: Mem0Library) -> ProviderBackend:
        return core.back_end()
