"""A clock that is put back delays what waits by no more than the longest pause there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import CLI, QUICK, AsyncDiary, Call, CoreFixture, until

from everthread.domain.errors import Unavailable
from everthread.memory.delivery_results import Limits

HOUR_S = 3600.0


async def down(call: Call) -> None:
    raise Unavailable("diary", "down")


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(backoff_s=0.2, backoff_s_max=0.4, breaker_failures=99), id="back-off"),
        pytest.param(Limits(backoff_s=0.01, backoff_s_max=0.02, breaker_failures=1, breaker_s=0.4), id="breaker"),
    ],
)
async def test_what_waits_is_delivered_though_the_clock_is_put_back(tmp_path: Path, limits: Limits) -> None:
    diary = AsyncDiary()
    diary.before = down
    async with CoreFixture(tmp_path, diary, limits=limits) as core:
        await core.turn(CLI, "hello")
        await until(lambda: diary.book.begun)
        await core.reported("memory:diary", "down")
        diary.before = None
        core.clock.ahead_s -= HOUR_S
        await core.settled()
        assert [call.text for call in diary.book.of("sync_turn")] == ["hello"]
        (status,) = await core.memory.journal.status()
        assert status.breaker_open_until is None


async def test_a_pause_that_is_long_but_meant_is_kept(tmp_path: Path) -> None:
    """The breaker may be set to pause for longer than any single entry waits."""
    diary = AsyncDiary()
    diary.before = down
    limits = Limits(backoff_s=0.001, backoff_s_max=0.002, breaker_failures=1, breaker_s=60.0)
    async with CoreFixture(tmp_path, diary, limits=limits) as core:
        await core.turn(CLI, "hello")
        await core.reported("memory:diary", "down")
        tried = len(diary.book.begun)
        for _ in range(3):
            await core.turn(CLI, "more")
            core.lanes.wake("journal:diary")
            await until(lambda: True)
        (status,) = await core.memory.journal.status()
        assert status.breaker_open_until is not None
        assert len(diary.book.begun) == tried
        assert QUICK.wait_s_max < limits.wait_s_max == limits.breaker_s
