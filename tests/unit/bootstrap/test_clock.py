"""The system clock, and ids that sort by time."""

from __future__ import annotations

import time

import pytest

from everthread.bootstrap.clock import SystemClock, ulids


async def test_the_clock_returns_the_system_time() -> None:
    before = time.time()
    clock = SystemClock()
    await clock.sleep(0.0)
    assert before <= clock.now() <= time.time()


async def test_elapsed_time_goes_on_with_the_wall_clock() -> None:
    clock = SystemClock()
    before, now = clock.elapsed(), clock.now()
    await clock.sleep(0.05)
    assert 0.04 < clock.elapsed() - before < clock.now() - now + 0.01


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_elapsed_time_includes_suspension() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().elapsed() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_ids_increase_even_if_the_clock_goes_back_or_randomness_repeats() -> None:
    times = iter([2.0, 1.0, 1.0, 3.0])
    new_id = ulids(lambda: next(times), lambda bits: 0)
    ids = [new_id() for _ in range(4)]
    assert ids == sorted(set(ids))
    assert {len(each) for each in ids} == {26}
