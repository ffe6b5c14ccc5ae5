"""The bridge keeps the contract of every provider, with a hand-written plugin in the shape of Hermes Agent's.

With plugins of the real one it is held against the contract in tests/servers.
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
        """A plugin can't say so: it raises what it raises, and that is believed after some attempts."""
        assert faults is not None
        await caller.ready()
        session = Session(caller, "s1", "ann")
        faults.reject_next(8)
        with pytest.raises(Unavailable, match="not like this"):
            await session.deliver(session.turn("I keep bees"))
        with pytest.raises(Rejected, match="not like this"):
            await session.again(attempt=8)

    @in_loop
    async def test_what_was_acknowledged_and_is_delivered_again_has_no_second_effect(
        self, caller: Caller, effects: EffectsOf, diaries: Diaries
    ) -> None:
        """Exempt in general; but what the plugin has acknowledged is written down, also for the next process."""
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
