"""Test the bridge against the provider contract, with a hand-written plugin in the style of Hermes Agent.

The contract tests with real Hermes Agent plugins are in tests/servers.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.cleanup import close_with_loop
from tests.hermes_plugins import Diaries

from everthread.adapters.memory.hermes_bridge.provider import HermesBridge
from everthread.domain.errors import Rejected, Unavailable
from everthread.memory.provider_calls import Caller
from everthread.testing import in_loop
from everthread.testing.contracts.memory_provider import EffectsOf, Faults, ProviderContract, Session


class TestHermesBridge(ProviderContract):
    @pytest.fixture
    def diaries(self, tmp_path: Path) -> Diaries:
        return Diaries(tmp_path / "bridge")

    @pytest.fixture
    def settings(self, diaries: Diaries) -> dict[str, Any]:
        return diaries.settings

    @pytest.fixture
    def provider(self) -> HermesBridge:
        return close_with_loop(HermesBridge, plugin="diary")

    @pytest.fixture
    def effects(self, diaries: Diaries) -> EffectsOf:
        return lambda provider: diaries.effects()

    @pytest.fixture
    def faults(self, diaries: Diaries) -> Faults:
        return diaries.ways

    @in_loop
    async def test_an_invalid_entry_is_rejected(self, caller: Caller, faults: Faults | None) -> None:
        """Plugins cannot signal a rejection. The bridge treats an exception as one after several attempts."""
        assert faults is not None
        await caller.ready()
        session = Session(caller, "s1", "ann")
        faults.reject_next(8)
        with pytest.raises(Unavailable, match="not like this"):
            await session.deliver(session.turn("I keep bees"))
        with pytest.raises(Rejected, match="not like this"):
            await session.again(attempt=8)

    @in_loop
    async def test_redelivery_of_an_acknowledged_entry_has_no_second_effect(
        self, caller: Caller, effects: EffectsOf, diaries: Diaries
    ) -> None:
        """The contract exempts plugins, but the bridge records acknowledged entries for later processes too."""
        await caller.ready()
        session = Session(caller, "s1", "ann")
        for event in session.everything():
            await session.deliver(event)
        once = diaries.effects()
        for which in range(len(session.delivered)):
            await session.again(which)
        assert diaries.effects() == once
        await caller.call("shutdown", timeout_s=5)
        session.caller = Caller(close_with_loop(HermesBridge, plugin="diary"), diaries.settings)
        await session.caller.ready()
        for which in range(len(session.delivered)):
            await session.again(which)
        assert diaries.effects() == once
