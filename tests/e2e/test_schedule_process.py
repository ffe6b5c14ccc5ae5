"""Scheduled tasks, and messages from scripts, with a gateway that is a process and is killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.commands import everthread, printed, refused
from tests.e2e.gateway_process_fixture import GatewayHouse, model, until
from tests.faults.fixture import Scene
from tests.faults.worker import FastClock

from everthread.adapters.sqlite.store import SqliteStore
from everthread.bootstrap.clock import ulids
from everthread.domain.recurrence import Missed, occurrences
from everthread.domain.schedule import Schedule, Target, TargetKind
from everthread.lifecycle.schedules import NewSchedule, ScheduleService

pytestmark = pytest.mark.timeout(120)

RATE = 20.0
KILLS = 6


async def kept(home: Path, clock: FastClock) -> Schedule:
    store = await SqliteStore.open(home / "everthread.db")
    try:
        target = Target(TargetKind.CHAT, "agent:main:loop:dm:c1")
        wish = NewSchedule("me", "every 1m", "UTC", "tick", target=target, missed=Missed.ALL)
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with model() as address:
        yield address


@pytest.fixture
def core(tmp_path: Path, url: str) -> Iterator[GatewayHouse]:
    there = GatewayHouse(tmp_path / "home", url)
    yield there
    there.leave()


def test_a_script_sends_something_through_the_gateway_that_runs(core: GatewayHouse) -> None:
    gateway = core.run()
    sent = everthread(core.home, "send", "post:7", "The backup is done.", "--wait", "15")
    assert (sent.returncode, sent.stdout) == (0, "Sent.\n"), sent.stderr
    assert core.out("7") == ["The backup is done."]
    piped = everthread(core.home, "send", "post:7", "--wait", "15", answer="one\ntwo\n")
    assert piped.returncode == 0
    assert core.out("7")[1:] == ["one\ntwo"]
    assert core.end(gateway)[0] == 0


def test_without_a_gateway_it_waits_and_goes_out_once_when_one_comes(core: GatewayHouse) -> None:
    queued = printed(core.home, "send", "post:7", "hello")
    assert (queued["state"], queued["gateway"]) == ("ready", False)
    assert everthread(core.home, "send", "post:7", "still", "--wait", "0.2").returncode == 75
    for _ in range(2):
        core.end(core.run())
    until(lambda: len(core.out("7")) >= 2, "both are sent")
    assert core.out("7") == ["hello", "still"]


def test_a_file_is_sent_as_text_where_no_files_can_be_sent(core: GatewayHouse, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("milk\neggs")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\x00")
    core.run()
    sent = everthread(core.home, "send", "post:7", "The list:", "--file", str(tmp_path / "list.txt"), "--wait", "15")
    assert sent.returncode == 0, sent.stderr
    assert core.out("7") == ["The list:\n\nmilk\neggs"]
    refused(
        everthread(core.home, "send", "post:7", "--file", str(tmp_path / "picture.png"), "--wait", "15"), 1, "doctor"
    )
    assert "picture.png is not text" in everthread(core.home, "doctor", "--offline").stdout


def test_an_address_that_leads_nowhere_is_refused(core: GatewayHouse) -> None:
    refused(everthread(core.home, "send", "nowhere:7", "hello"), 2, "there are: post")
    refused(everthread(core.home, "send", "post", "hello"), 2, "PLATFORM:CHAT")
    refused(everthread(core.home, "send", "post:7", answer=" \n"), 2, "the message is empty")
    refused(everthread(core.home, "send", "post:7", "x" * 100_001), 2, "--file")


def test_a_task_is_kept_looked_at_done_now_and_removed(core: GatewayHouse) -> None:
    home = core.home
    added = everthread(home, "cron", "add", "0 8 * * 1-5", "Say hi", "--zone", "Europe/Berlin", "--to", "post:1")
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("say-hi: next: ")
    assert added.stdout.endswith(" 08:00 Europe/Berlin\n")
    assert "gateway start" in added.stderr
    refused(everthread(home, "cron", "add", "@daily", "x", "--name", "say-hi"), 1, "choose another name")
    done = everthread(home, "cron", "run", "say-hi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "when a gateway runs" in done.stderr
    (listed,) = printed(home, "cron", "list")
    assert (listed["last"]["state"], listed["to"], listed["missed"]) == ("done", "post:1", "once")
    gateway = core.run()
    until(lambda: len(core.out("1")) == 1, "what was done before is said")
    assert "gateway runs it" in everthread(home, "cron", "run", "say-hi").stdout
    until(lambda: len(core.out("1")) == 2, "the gateway does it")
    core.end(gateway)
    shown = everthread(home, "cron", "show", "say-hi").stdout
    assert shown.count("reply sent") == 2
    assert everthread(home, "cron", "pause", "say-hi").returncode == 0
    assert printed(home, "cron", "list")[0]["next"] is None
    assert "next: " in everthread(home, "cron", "resume", "say-hi").stdout
    assert printed(home, "cron", "remove", "say-hi")["removed"] is True
    refused(everthread(home, "cron", "show", "say-hi"), 1, "cron list")


def test_what_can_not_be_kept_is_refused_in_a_line(tmp_path: Path) -> None:
    def add(*more: str) -> Any:
        return everthread(tmp_path, "cron", "add", "@daily", "x", *more)

    for spend in ("nan", "inf", "-1"):
        refused(add("--spend", spend), 2, "--spend")
    for owner in ("a" * 3000, "a\nb", " "):
        refused(add("--owner", owner), 2, "--owner")
    refused(add("--to", "https://me:geheim@h.example/x", "--secret-env", "S"), 2, "password")
    (tmp_path / "files").mkdir()
    refused(add("--to", "file:" + "x" * 300), 2, "is not a path")
    assert printed(tmp_path, "cron", "list") == []
