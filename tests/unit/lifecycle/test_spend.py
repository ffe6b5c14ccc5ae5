from pathlib import Path

import pytest
from tests.runtime import CLI, CoreFixture

from everthread.domain.errors import BudgetExceeded


async def test_a_reservation_counts_against_the_daily_limit(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "hello")).ref
        await core.lifecycle.reserve_spend(ref, "t1", "a/model", 0.6, limit_per_day=1.0)
        with pytest.raises(BudgetExceeded, match="24 hours"):
            await core.lifecycle.reserve_spend(ref, "t2", "a/model", 0.6, limit_per_day=1.0)
        await core.lifecycle.reserve_spend(ref, "t2", "a/model", 0.4, limit_per_day=1.0)


async def test_a_session_limit_is_checked_separately(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "hello")).ref
        with pytest.raises(BudgetExceeded, match="for a delegated task"):
            await core.lifecycle.reserve_spend(ref, "t1", "a/model", 0.3, limit_per_day=None, limit_of_session=0.2)
