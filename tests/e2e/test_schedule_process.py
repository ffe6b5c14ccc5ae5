"""Scheduled tasks, and messages from scripts, with a gateway that is a process and is killed."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from tests.faults.fixture import Scene
from tests.faults.worker import FastClock

from everthread.adapters.sqlite.store import SqliteStore
from everthread.bootstrap.clock import ulids
from everthread.domain.recurrence import MissedPolicy, occurrences
from everthread.domain.schedule import Schedule, Target, TargetKind
from everthread.lifecycle.schedules import NewSchedule, ScheduleService

pytestmark = pytest.mark.timeout(120)

RATE = 20.0
KILLS = 6


async def kept(home: Path, clock: FastClock) -> Schedule:
    store = await SqliteStore.open(home / "everthread.db")
    try:
        target = Target(TargetKind.CHAT, "agent:main:loop:dm:c1")
        wish = NewSchedule("me", "every 1m", "UTC", "tick", target=target, missed=MissedPolicy.ALL)
        return await ScheduleService(store, clock, ulids(clock.now)).add(wish)
    finally:
        await store.aclose()


async def paused(home: Path, clock: FastClock, schedule: Schedule) -> None:
    store = await SqliteStore.open(home / "everthread.db")
    try:
        await ScheduleService(store, clock, ulids(clock.now)).pause(schedule)
    finally:
        await store.aclose()


async def test_a_gateway_that_is_killed_again_and_again_does_each_time_once(tmp_path: Path) -> None:
    dice, origin = random.Random(7), time.time()
    async with Scene(tmp_path / "scene", model=["--delay-ms=150"]) as scene:
        clock = FastClock(origin, RATE)
        schedule = await kept(scene.home, clock)
        orders = {"origin": origin, "rate": RATE}
        for _ in range(KILLS):
            life = await scene.start(**orders)
            await asyncio.sleep(dice.uniform(0.2, 3.5))
            life.kill()
        await scene.start(**orders)
        deadline = time.monotonic() + 40
        while scene.rows("SELECT COUNT(*) FROM occurrences")[0][0] <= KILLS:
            assert time.monotonic() < deadline, "more than that are due long since"
            await asyncio.sleep(0.1)
        await paused(scene.home, clock, schedule)
        over = "SELECT COUNT(*) FROM occurrences WHERE state <> 'done'"
        deadline = time.monotonic() + 40
        while scene.rows(over)[0][0]:
            assert time.monotonic() < deadline, scene.rows("SELECT * FROM occurrences")
            await asyncio.sleep(0.1)
        await scene.rest()
        await scene.people.refresh()
        done = sorted(at for (at,) in scene.rows("SELECT due_at FROM occurrences"))
        assert len(done) > KILLS, "otherwise this is no test"
        planned = occurrences(schedule.plan, schedule.anchor)
        assert done == [next(planned) for _ in done], "none is left out"
        assert len(scene.people.answers("c1")) == len(done), "each is said once"
        assert len({one.text for one in scene.people.answers("c1")}) == len(done)
        kinds = "SELECT kind, COUNT(*) FROM sessions s JOIN turns t ON t.session_id = s.id GROUP BY kind"
        assert scene.rows(kinds) == [("cron", len(done))]
        assert scene.effects() == [], "nothing of it is told to memory"
