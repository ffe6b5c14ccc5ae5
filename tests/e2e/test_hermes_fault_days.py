"""A simulated day of faults for the Hermes bridge, with a hand-written plugin that records its session id.

Tests with the real Hermes Agent are in tests/servers.
"""

from pathlib import Path

import pytest
from tests.hermes_plugins import Diaries
from tests.hermes_provider_faults import LIMITS, spoiled
from tests.provider_backend import ProviderBackend
from tests.provider_faults import FAULTS_MIN, lived

from everthread.adapters.memory.hermes_bridge.provider import HermesBridge


class Diary(HermesBridge):
    def __init__(self) -> None:
        super().__init__("diary")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("holds", [False, True], ids=["writes at once", "holds back"])
async def test_after_all_kinds_of_faults_each_turn_is_in_its_session_before_the_close(
    tmp_path: Path, holds: bool
) -> None:
    diaries = Diaries(tmp_path / "bridge")
    diaries.ways.set(holds=holds)
    back_end = ProviderBackend(
        f"{Diary.__module__}:{Diary.__qualname__}",
        diaries.settings,
        diaries.ways,
        diaries.effects,
        keeps_closes=False,
        knows_no_keys=True,
    )
    day = await lived(tmp_path / "home", back_end, 1 + holds, LIMITS, spoiled)
    assert day.problems == []
    assert day.spoiled.total() >= FAULTS_MIN, day.spoiled
