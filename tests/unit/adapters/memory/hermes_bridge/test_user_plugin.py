"""One user's plugin: its start, its restarts and its deliveries."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.hermes_plugins import Diaries, bridge, child_of, close, ref, say

from everthread.domain.errors import StartOver, Unavailable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def diaries(tmp_path: Path) -> Diaries:
    return Diaries(tmp_path / "bridge")


async def test_a_plugin_that_is_not_configured_reports_where_its_settings_belong(diaries: Diaries) -> None:
    diaries.ways.set(unset=True)
    with pytest.raises(Unavailable, match=r"not configured.*config.yaml and .env.*everthread memory bridge test"):
        async with bridge(diaries):
            pass


async def test_a_cancelled_delivery_that_succeeds_is_not_repeated(diaries: Diaries) -> None:
    diaries.ways.set(in_thread=True, slow_s=0.4)
    async with bridge(diaries) as found:
        first = child_of(found)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await say(found, "one")
        await say(found, "one")
        assert child_of(found) == first
    assert diaries.delivered("s1") == ["one I see."]


async def test_a_plugin_that_crashes_is_restarted_after_a_pause(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        with pytest.raises(Unavailable, match=r"ended \(exit code 3\)"):
            await say(found, "crash")
        with pytest.raises(Unavailable, match="restarts in"):
            await say(found, "two", "s2")
        await again(lambda: say(found, "two", "s2"))
    assert diaries.delivered("s2") == ["two I see."]


async def test_entries_that_a_dead_process_acknowledged_are_redelivered_from_the_first(diaries: Diaries) -> None:
    diaries.ways.set(holds=True)
    async with bridge(diaries) as found:
        await say(found, "zero", seq=1)
        await close(found, seq=2)
        await say(found, "one", seq=3)
        await say(found, "two", seq=4)
        os.kill(child_of(found), signal.SIGKILL)
        with pytest.raises(StartOver) as asked:
            await again(lambda: say(found, "three", seq=5))
        assert asked.value.seq == 3
        for seq, word in ((3, "one"), (4, "two"), (5, "three")):
            await say(found, word, seq=seq)
        await close(found, seq=6)
    assert diaries.delivered("s1") == ["zero I see.", "one I see.", "two I see.", "three I see."]


async def test_a_recall_that_hangs_delays_no_delivery(diaries: Diaries) -> None:
    async with bridge(diaries) as found:
        await say(found, "I keep bees")
        first = child_of(found)
        diaries.ways.hang()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await found.prefetch("bees", ref=ref("s2"), limit=5)
        diaries.ways.heal()
        await say(found, "two", "s3")
        assert child_of(found) == first


async def again(act: Any) -> None:
    """Retry like the journal until the provider accepts the delivery or asks for a restart."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return await act()
        except StartOver:
            raise
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
