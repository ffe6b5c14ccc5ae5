"""The system clock, and ids that sort by time."""

from __future__ import annotations

import time

from everthread.bootstrap.clock import SystemClock, ulids


async def test_the_clock_returns_the_system_time() -> None:
    before = time.time()
    clock = SystemClock()
    await clock.sleep(0.0)
    assert before <= clock.now() <= time.time()


def test_ids_increase_even_if_the_clock_goes_back_or_randomness_repeats() -> None:
    times = iter([2.0, 1.0, 1.0, 3.0])
    new_id = ulids(lambda: next(times), lambda bits: 0)
    ids = [new_id() for _ in range(4)]
    assert ids == sorted(set(ids))
    assert {len(each) for each in ids} == {26}
