"""Scheduled tasks: run at their time, once, and delivered to their chat."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fake_platform import FakePlatform
from tests.faults.fixture import Scene
from tests.faults.worker import FastClock
from tests.gateway import ANNA, GatewayFixture, gateway_fixture
from tests.notices import NoticeRecorder
from tests.runtime import until

from everthread.adapters.sqlite.store import SqliteStore
from everthread.bootstrap.clock import ulids
from everthread.config.schema import (
    AccessGrants,
    AccessSettings,
    CompressionSettings,
    GatewaySettings,
    PlatformAccount,
    ProviderSettings,
    Variables,
)
from everthread.domain.model import SessionKey, SessionKind
from everthread.domain.pairing import PairedAccount
from everthread.domain.recurrence import MissedPolicy, occurrences
from everthread.domain.schedule import Occurrence, OccurrenceState, Schedule, ScheduleState, Target, TargetKind
from everthread.lifecycle import ForgetOwner
from everthread.lifecycle.pairing import Pairings
from everthread.lifecycle.schedules import NewSchedule, ScheduleService
from everthread.ports.model import Usage
from everthread.testing.model_server.http import HttpRequest, HttpServer, read_request, respond
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer
from everthread.testing.recording_provider import RecordingProvider

pytestmark = pytest.mark.timeout(60)

HOUR = 3600.0
CHAT = Target(TargetKind.CHAT, "agent:main:fake:dm:42")
WISH = NewSchedule("me", "every 1h", "UTC", "Say good morning", target=CHAT)


def echo(request: Any) -> Say:
    said = [message.content for message in request.messages if message.role == "user"]
    return Say(f"You said {said[-1].splitlines()[-1]} ({len(said)})")


async def times(fixture: GatewayFixture) -> tuple[Occurrence, ...]:
    (schedule,) = await fixture.runtime.store.read(lambda uow: uow.schedules.all())
    return await fixture.runtime.store.read(lambda uow: uow.schedules.occurrences(schedule.id, 100))


async def over(fixture: GatewayFixture, count: int = 1) -> tuple[Occurrence, ...]:
    """Wait until `count` occurrences of the task have ended and return them."""
    ended: list[tuple[Occurrence, ...]] = [()]

    async def look() -> bool:
        found = [time for time in await times(fixture) if time.ended_at is not None and time.retry_at == 0]
        ended.append(tuple(time for time in found if time.state is not OccurrenceState.DELIVERING))
        return len(ended[-1]) >= count

    for _ in range(800):
        if await look():
            await fixture.rest()
            return ended[-1]
        await asyncio.sleep(0.01)
    raise AssertionError(f"not over: {await times(fixture)}")


class Listener(HttpServer):
    """Webhook receiver that returns the given statuses, then 200."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses, self.heard = list(statuses), list[HttpRequest]()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        _, request = await read_request(reader)
        self.heard.append(request)
        return await respond(writer, self.statuses.pop(0) if self.statuses else 200, b"")

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def test_a_due_task_runs_and_its_answer_is_sent_to_the_chat(tmp_path: Path) -> None:
    told, notices = RecordingProvider(), NoticeRecorder()
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model, providers=(told, notices)) as fixture:
        schedule = await fixture.runtime.scheduling.add(WISH)
        assert schedule.name == "say-good-morning"
        assert fixture.platform.texts() == []
        for count in (1, 2):
            await fixture.later(HOUR)
            await until(lambda count=count: len(fixture.platform.texts()) == count)
            await over(fixture, count)
        assert fixture.platform.texts() == ["You said Say good morning (1)"] * 2
        found = await over(fixture, 2)
        assert [time.state for time in found] == [OccurrenceState.DONE] * 2
        assert found[0].due_at - found[1].due_at == HOUR
        sessions = [
            await fixture.runtime.store.read(lambda uow, t=time: uow.sessions.get(t.session_id or "")) for time in found
        ]
        assert len({session.id for session in sessions if session}) == 2, "each occurrence must have its own session"
        assert all(session and session.kind is SessionKind.CRON and session.ended_at for session in sessions)
        fixture.platform.say("hello")
        await until(lambda: len(fixture.platform.texts()) == 3)
        await fixture.settled()
        assert {call.ref.key.platform for call in told.calls} == {"fake"}, "providers must not receive scheduled turns"
        await until(lambda: len(notices.calls) == 2)
        called = sorted((hook, text, ref.key.platform) for hook, text, ref in notices.calls)
        assert called == [("on_turn_start", "hello", "fake"), ("queue_prefetch", "hello", "fake")]


async def test_a_person_who_resumes_a_scheduled_session_is_remembered(tmp_path: Path) -> None:
    told = RecordingProvider()
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model, providers=(told,)) as there:
        await there.hear("hello")
        left = await there.session()
        await there.runtime.scheduling.add(replace(WISH, owner=left.owner, target=Target(), continues=True))
        await there.later(HOUR)
        (run,) = await over(there)
        assert run.session_id is not None
        (resumed,) = await there.hear(f"/resume {run.session_id}")
        chat = await there.session()
        assert resumed.startswith(f"Resumed {run.session_id} in a copy, {chat.id}, 1 turn.")
        assert (chat.kind, chat.parent_id, chat.key) == (SessionKind.CHAT, run.session_id, ANNA)
        assert await there.hear("why in the morning?") == ["You said why in the morning? (2)"]
        assert "already in your copy" in (await there.hear(f"/resume {run.session_id}"))[0]

        # The task goes on in its own session, without the person's turn.
        await there.later(HOUR)
        await over(there, 2)
        assert [turn.user_text.splitlines()[-1] for turn in await there.turns(run.session_id)] == [
            "Say good morning",
            "Say good morning",
        ]
        await there.settled()
        assert {call.ref.session_id for call in told.calls} == {left.id, chat.id}
        (turn,) = [entry.text for entry in told.effects(chat.id) if entry.kind == "turn"]
        assert "why in the morning?" in turn


async def test_a_continuing_task_keeps_one_session(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(replace(WISH, continues=True))
        for count in (1, 2, 3):
            await fixture.later(HOUR)
            await over(fixture, count)
        # A run is over when its reply is stored; the outbox sends it after that.
        await fixture.rest()
        assert fixture.platform.texts() == [f"You said Say good morning ({n})" for n in (1, 2, 3)]
        assert len({time.session_id for time in await times(fixture)}) == 1


async def test_the_session_of_a_continuing_task_is_compressed(tmp_path: Path) -> None:
    answers, told = Say("of boats and masts " * 500, usage=Usage(9_000, 3_000)), RecordingProvider()

    def script(request: Any) -> Say:
        return Say("## Facts\n- boats") if "Bring the summary" in str(request) else answers

    async with ModelServer(script) as model:
        endpoints = {"stub": ProviderSettings("openai_compat", model.base_url, context_tokens=20_000)}
        more = {"endpoints": endpoints, "compression": CompressionSettings(tail_tokens=100), "providers": (told,)}
        async with gateway_fixture(tmp_path, model, **more) as fixture:
            await fixture.runtime.scheduling.add(replace(WISH, continues=True))
            for count in range(1, 6):
                await fixture.later(HOUR)
                await over(fixture, count)
            assert any(b"Bring the summary" in body for body in model.requests)
            found = await times(fixture)
            assert len({time.session_id for time in found}) > 1, "the task must continue in the compressed session"
            line, store = [found[0].session_id], fixture.runtime.store
            while line[-1] is not None:
                session = await store.read(lambda uow: uow.sessions.get(line[-1] or ""))
                assert session is not None
                assert session.kind is SessionKind.CRON, "the compressed session must stay a cron session"
                line.append(session.parent_id)
            assert {time.session_id for time in found} <= {*line}, "all sessions must belong to one chain"
            assert [time.state for time in found] == [OccurrenceState.DONE] * 5
            await fixture.settled()
            assert told.calls == [], "providers must not receive scheduled turns"


async def test_missed_occurrences_follow_the_policy_of_the_task(tmp_path: Path) -> None:
    for missed, expected in ((MissedPolicy.SKIP, 0), (MissedPolicy.ONCE, 1), (MissedPolicy.ALL, 5)):
        home = tmp_path / missed.value
        async with ModelServer(echo) as model:
            async with gateway_fixture(home, model) as fixture:
                await fixture.runtime.scheduling.add(replace(WISH, missed=missed))
                clock = fixture.clock
            clock.advance(5.5 * HOUR)
            async with gateway_fixture(home, model, clock=clock) as fixture:
                skipped = {MissedPolicy.SKIP: 1, MissedPolicy.ONCE: 1, MissedPolicy.ALL: 0}[missed]
                await over(fixture, expected + skipped)
                await until(lambda fixture=fixture: fixture.gateway.scheduler.running == 0)
                await fixture.rest()
                assert len(fixture.platform.texts()) == expected
                states = [time.state for time in await times(fixture)]
                assert states.count(OccurrenceState.SKIPPED) == skipped
                await fixture.later(HOUR / 2)
                await until(lambda fixture=fixture, n=expected: len(fixture.platform.texts()) == n + 1)


async def test_a_clock_set_back_repeats_and_skips_nothing(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(WISH)
        fixture.clock.ahead_s += 3 * 365 * 24 * HOUR
        await until(lambda: len(fixture.platform.texts()) == 1)
        await until(lambda: fixture.gateway.scheduler.running == 0)
        fixture.clock.ahead_s -= 3 * 365 * 24 * HOUR
        await asyncio.sleep(1.5)
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 2)
        fixture.clock.ahead_s -= HOUR
        await asyncio.sleep(2.5)
        fixture.clock.ahead_s += HOUR
        await asyncio.sleep(1.5)
        assert len(fixture.platform.texts()) == 2
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 3)


async def test_a_clock_that_jumps_during_a_poll_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(WISH)
        real, jumps = ScheduleService.fire_due, [3 * 365 * 24 * HOUR]

        async def jump(*by: Any) -> int:
            fixture.clock.ahead_s += jumps.pop() if jumps else 0.0
            try:
                return await real(*by)
            finally:
                fixture.clock.ahead_s = 0.0

        monkeypatch.setattr(ScheduleService, "fire_due", jump)
        await until(lambda: not jumps)
        await asyncio.sleep(1.5)
        (schedule,) = await fixture.runtime.store.read(lambda uow: uow.schedules.all())
        assert schedule.next_at == schedule.anchor + HOUR, "the clock jump must not change the next occurrence"


async def test_paused_and_removed_tasks_do_not_run(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        scheduling = fixture.runtime.scheduling
        schedule = await scheduling.add(WISH)
        assert (await scheduling.pause(schedule)).next_at is None
        await fixture.later(5.2 * HOUR)
        await asyncio.sleep(1.2)
        assert fixture.platform.texts() == []
        resumed = await scheduling.resume(schedule)
        assert resumed.next_at == schedule.anchor + 6 * HOUR
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 1)
        assert await scheduling.remove(schedule)
        await fixture.later(HOUR)
        await asyncio.sleep(1.2)
        assert len(fixture.platform.texts()) == 1


async def test_a_task_has_only_its_tools_and_none_that_write_memory(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        scheduling = fixture.runtime.scheduling
        await scheduling.add(replace(WISH, name="usual"))
        await scheduling.add(replace(WISH, name="one", tools=("search_messages", "schedule")))
        await scheduling.add(replace(WISH, name="none", tools=()))
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 3)
        bodies = [json.loads(request.body) for request in model.received]
        names = sorted(([tool["function"]["name"] for tool in body.get("tools", ())] for body in bodies), key=len)
        assert names[0] == []
        assert len(names[1]) <= 1
        assert "schedule" not in names[2]
        assert not [name for name in names[2] if "remember" in name or name.startswith("memory")]


async def test_a_failure_is_reported_and_stored(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Fail(401, "no")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(WISH)
        await fixture.later(HOUR)
        (time,) = await over(fixture)
        assert time.state is OccurrenceState.FAILED
        assert time.problem
        await until(fixture.platform.texts)
        assert "failed: " in fixture.platform.texts()[0]
        incidents = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(5))
        assert any(incident.source == "schedule" for incident in incidents)


async def test_a_guest_gets_no_details_of_the_configuration(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Fail(401, "no")) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(replace(WISH, owner="bea"))
        await fixture.later(HOUR)
        (time,) = await over(fixture)
        assert "stub" in time.problem
        await until(fixture.platform.texts)
        (report,) = fixture.platform.texts()
        assert "failed: " in report
        assert "stub" not in report
        assert "in the log under" in report


async def test_an_unknown_model_fails_one_occurrence_only(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(replace(WISH, model="nobody/none"))
        for count in (1, 2):
            await fixture.later(HOUR)
            found = await over(fixture, count)
            assert {time.state for time in found} == {OccurrenceState.FAILED}
            assert "nobody/none" in found[0].problem
            await until(lambda count=count: len(fixture.platform.texts()) == count, "who waits for it is told")
            assert "nobody/none" in fixture.platform.texts()[-1]


async def test_guests_and_webhooks_learn_that_no_model_could_be_called(tmp_path: Path) -> None:
    variables = Variables({"HOOK_SECRET": "s3cret"})
    # Otherwise the guest's task would call the configured model.
    access = AccessSettings(people={"bea": AccessGrants(models=("nobody/none",))})
    async with (
        ModelServer(echo) as model,
        Listener() as listener,
        gateway_fixture(tmp_path, model, variables=variables, access=access) as fixture,
    ):
        hook = Target(TargetKind.WEBHOOK, listener.address, "HOOK_SECRET")
        await fixture.runtime.scheduling.add(replace(WISH, owner="bea", model="nobody/none"))
        await fixture.runtime.scheduling.add(replace(WISH, target=hook, model="nobody/none"))
        await fixture.later(HOUR)
        await until(lambda: fixture.platform.texts() and listener.heard)
        (told,) = fixture.platform.texts()
        assert "failed: " in told
        assert "nobody" not in told
        said = json.loads(listener.heard[0].body)
        assert (said["ok"], said["text"]) == (False, "")
        assert "nobody/none" in said["problem"]


async def test_a_task_with_an_unknown_time_zone_blocks_no_other(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        good = await fixture.runtime.scheduling.add(WISH)
        broken = replace(good, id="0", name="broken", zone="Mars/Base", next_at=good.anchor)
        await fixture.runtime.store.write(lambda uow: uow.schedules.add(broken))
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 1)
        left = await fixture.runtime.store.read(lambda uow: uow.schedules.get("0"))
        assert left is not None
        assert left.state is ScheduleState.PAUSED
        (incident, *_) = await fixture.runtime.store.read(lambda uow: uow.incidents.newest(5))
        assert "broken is paused" in incident.text


async def test_forgetting_an_owner_removes_their_tasks(tmp_path: Path) -> None:
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model) as fixture:
        await fixture.runtime.scheduling.add(WISH)
        await fixture.runtime.scheduling.add(replace(WISH, owner="bea"))
        await fixture.later(HOUR)
        await until(lambda: len(fixture.platform.texts()) == 2)
        await fixture.runtime.lifecycle.forget(ForgetOwner(), owner="bea")
        left = await fixture.runtime.store.read(lambda uow: uow.schedules.all())
        assert [schedule.owner for schedule in left] == ["me"]
        key = SessionKey.parse("agent:main:cron:dm:x")
        assert fixture.runtime.settings.reset.of(key).idle_s is None


async def test_an_occurrence_cut_off_by_a_shutdown_is_run_by_the_next_process(tmp_path: Path) -> None:
    slow = Say("slow", chunks=50, delay_s=0.2)
    clock = None
    async with ModelServer(lambda _: slow) as model, gateway_fixture(tmp_path, model, drain_s=0.1) as fixture:
        await fixture.runtime.scheduling.add(WISH)
        await fixture.later(HOUR)
        await until(lambda: fixture.gateway.scheduler.running == 1)
        await until(lambda: len(model.received) == 1)
        clock = fixture.clock
    platform = FakePlatform()
    async with ModelServer(echo) as model, gateway_fixture(tmp_path, model, platform, clock=clock) as fixture:
        await until(lambda: platform.texts() == ["You said Say good morning (1)"])
        (time,) = await over(fixture)
        assert time.state is OccurrenceState.DONE


async def test_a_stopping_gateway_lets_a_running_task_end(tmp_path: Path) -> None:
    model = ModelServer(lambda _: Say("Good morning", delay_s=0.5))
    async with model, gateway_fixture(tmp_path, model, drain_s=8.0) as fixture:
        await fixture.runtime.scheduling.add(replace(WISH, target=Target()))
        await fixture.later(HOUR)
        await until(lambda: len(model.received) == 1, "asked")
        await fixture.gateway.stop(8.0)
        (time,) = await times(fixture)
        assert time.state is OccurrenceState.DONE, "the occurrence must end and not be released for a retry"


async def test_tasks_of_a_removed_guest_are_paused(tmp_path: Path) -> None:
    """Scheduled tasks of a guest without access must neither call the model nor send messages."""
    # fake:46 was paired as itself and is linked to dora now; it still has access.
    links = {"bea": ("fake:44",), "dora": ("fake:46",)}
    pairings_of = {"fake:42": "42", "anna": "43", "fake:46": "46", "mia": "47", "nora": "48"}
    async with (
        ModelServer(echo) as model,
        gateway_fixture(
            tmp_path, model, account=PlatformAccount("fake"), gateway=GatewaySettings(links=links)
        ) as fixture,
    ):
        store, scheduling = fixture.runtime.store, fixture.runtime.scheduling
        for owner, user in pairings_of.items():
            await store.write(lambda uow, o=owner, u=user: uow.access.add_guest(PairedAccount("fake", u, o, "", 1.0)))
            chat = Target(TargetKind.CHAT, f"agent:main:fake:dm:{user}")
            await scheduling.add(replace(WISH, owner=owner, target=chat))
        # bea is linked in the settings but has no access; carl has no account, and the owner keeps the task.
        await scheduling.add(replace(WISH, owner="bea", target=Target(TargetKind.CHAT, "agent:main:fake:dm:44")))
        await scheduling.add(replace(WISH, owner="carl", target=Target(TargetKind.CHAT, "agent:main:fake:dm:45")))
        # mia and nora write before both are revoked; nora is paired again with another account.
        for user in ("47", "48"):
            assert await fixture.hear("hello", user) == ["You said hello (1)"]
        for user in ("42", "47", "48"):
            await Pairings(store, fixture.clock).revoke("fake", user)
        await store.write(lambda uow: uow.access.add_guest(PairedAccount("fake", "49", "nora", "", 1.0)))
        asked = len(model.received)
        await fixture.later(HOUR)
        await until(lambda: all(fixture.platform.texts(chat) for chat in ("43", "45", "46")))
        await until(lambda: len(fixture.platform.texts("48")) == 2)
        await until(lambda: fixture.gateway.scheduler.running == 0)
        assert fixture.platform.texts("42") == fixture.platform.texts("44") == []
        assert fixture.platform.texts("47") == ["You said hello (1)"]
        assert len(model.received) - asked == 4, "paused tasks must not call the model"
        found = {schedule.owner: (schedule.state, last) for schedule, last in await scheduling.all()}
        for owner in ("fake:42", "bea", "mia"):
            state, last = found[owner]
            assert state is ScheduleState.PAUSED
            assert last is not None
            assert "may no longer write to you" in last.problem


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


@pytest.mark.timeout(120)
async def test_repeated_kills_run_each_occurrence_once(tmp_path: Path) -> None:
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
            assert time.monotonic() < deadline, "not enough occurrences within 40 s"
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
        assert len(done) > KILLS, "the test needs more occurrences than kills"
        planned = occurrences(schedule.plan, schedule.anchor)
        assert done == [next(planned) for _ in done], "no occurrence may be skipped"
        assert len(scene.people.answers("c1")) == len(done), "each answer must be sent once"
        assert len({one.text for one in scene.people.answers("c1")}) == len(done)
        kinds = "SELECT kind, COUNT(*) FROM sessions s JOIN turns t ON t.session_id = s.id GROUP BY kind"
        assert scene.rows(kinds) == [("cron", len(done))]
        assert scene.effects() == [], "memory must receive nothing of scheduled turns"
