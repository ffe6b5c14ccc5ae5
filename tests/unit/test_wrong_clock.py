"""Every subsystem under a wrong clock: each waits as long as it should, and no longer.

A `Subject` is put into a state that lasts for some time: a lease is held, a delivery waits, a conversation is open.
Each scenario then moves the clock, and says when that state must be over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime import ME, TELEGRAM, AsyncDiary, Call

from everthread.adapters.sqlite.store import SqliteStore
from everthread.agent.compression.state import CompressionStates
from everthread.agent.rights import RightsLookup
from everthread.config.schema import Settings
from everthread.domain.boundary import New
from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.domain.errors import BadConfig, BudgetExceeded, LockedOut, NotFound, Unavailable
from everthread.domain.model import Inbound, Lease, Message, Role
from everthread.domain.pairing import WRONG_MAX
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.review_window import ReviewState, ReviewWindow
from everthread.domain.rights import RightsPolicy
from everthread.domain.schedule import Occurrence, OccurrenceState
from everthread.gateway.rate_limit import RateLimiter
from everthread.gateway.scheduler import Scheduler
from everthread.lifecycle import Lifecycle
from everthread.lifecycle.pairing import TERMINAL, Pairings
from everthread.lifecycle.reviews import claim_review
from everthread.lifecycle.schedules import NewSchedule, ScheduleService
from everthread.memory.circuit_breaker import RecallBreakers
from everthread.memory.delivery import DeliveryService
from everthread.memory.delivery_results import Limits
from everthread.memory.provider_calls import Caller
from everthread.store.failed_updates import FailedUpdate
from everthread.store.unit_of_work import Store
from everthread.testing.contracts.store.fixtures import StillClock

EPOCH = 1_850_000_000.0
HOUR_S = 3600.0
YEAR_S = 366 * 24 * HOUR_S
STEP_S = 10.0
"""A correction of the clock that is too small to matter."""

_ids = count(1)


class Subject(ABC):
    """A subsystem in one process."""

    lasts_s: float
    """The state that `begin` starts is over after this time, even if the clock was set."""
    holds_s: float | None = None
    """It is not over before this time; if not given, until shortly before `lasts_s`."""

    def __init__(self, store: Store, clock: StillClock) -> None:
        self.store = store
        self.clock = clock

    async def open(self) -> None:  # noqa: B027 - some have nothing to prepare
        """Prepare the services of a new process."""

    async def work(self) -> None:  # noqa: B027 - some do nothing by themselves
        """Do what the process does all the time."""

    @abstractmethod
    async def begin(self) -> None:
        """Put the subsystem into the state that lasts for a while."""

    @abstractmethod
    async def is_over(self) -> bool:
        """Let the subsystem work, and tell if the state is over."""

    def lifecycle(self, policies: ResetPolicies | None = None) -> Lifecycle:
        return Lifecycle(self.store, self.clock, lambda: f"{next(_ids):06}", holder="here", policies=policies)

    async def turn(self, lifecycle: Lifecycle) -> str:
        await lifecycle.accept(Inbound(TELEGRAM, ME, "hello"))
        claim = await lifecycle.begin_turn(TELEGRAM)
        assert claim is not None
        done = await lifecycle.commit_turn(claim, (Message(Role.USER, "hello"), Message(Role.ASSISTANT, "hi")), "hi")
        return done.ref.session_id


class LaneLease(Subject):
    """The lease of a process that died."""

    lasts_s = 61.0
    holds_s = 14.0

    async def begin(self) -> None:
        held = await self.store.write(lambda uow: uow.leases.acquire("lane", "dead", self.clock.now(), 15.0))
        assert held is not None

    async def work(self) -> None:
        # The heartbeat of a living process.
        await self.store.write(lambda uow: uow.leases.shorten(self.clock.now(), 60.0))

    async def is_over(self) -> bool:
        await self.work()
        now = self.clock.now()
        return await self.store.write(lambda uow: uow.leases.acquire("lane", "next", now, 15.0)) is not None


class _Delivery(Subject):
    limits: Limits

    async def open(self) -> None:
        self.diary = AsyncDiary()
        callers = {"diary": Caller(self.diary)}
        self.delivery = DeliveryService(self.store, self.clock, callers, random=lambda: 1.0, limits=self.limits)
        await self.delivery.register()
        now, holder = self.clock.now(), f"process {next(_ids)}"
        lease = await self.store.write(lambda uow: uow.leases.acquire(f"journal {holder}", holder, now, 15.0))
        assert lease is not None
        self.lease = lease

    async def begin(self) -> None:
        self.diary.before = _down
        await self.turn(self.lifecycle())
        await self.drain()
        assert self.diary.book.begun
        assert not self.diary.book.calls
        self.diary.before = None

    async def is_over(self) -> bool:
        await self.drain()
        return any(call.hook == "sync_turn" for call in self.diary.book.calls)

    async def drain(self) -> None:
        await self.delivery.drain("diary", self.lease)
        await self.delivery.idle()


async def _down(call: Call) -> None:
    raise Unavailable("diary", "down")


class Cursor(_Delivery):
    """The backoff of a delivery."""

    lasts_s = 100.0
    limits = Limits(backoff_s=100.0, breaker_failures=99)


class ProviderBreaker(_Delivery):
    """The breaker of a provider, which is stored."""

    lasts_s = 100.0
    limits = Limits(backoff_s=1.0, breaker_failures=1, breaker_s=100.0)


class RecallBreaker(Subject):
    """A breaker in memory."""

    lasts_s = 60.0

    async def open(self) -> None:
        self.breakers = RecallBreakers()

    async def begin(self) -> None:
        self.breakers.record_timeout(("diary", True), self.clock.elapsed())

    async def is_over(self) -> bool:
        return self.breakers.may_ask(("diary", True), self.clock.elapsed())


class HourlyTask(Subject):
    """The next occurrence of a scheduled task."""

    lasts_s = HOUR_S
    recurrence = "every 1h"

    async def open(self) -> None:
        self.service = ScheduleService(self.store, self.clock, lambda: f"{next(_ids):06}")

        def choices(model: str) -> Any:
            raise BadConfig("no model")

        self.scheduler = Scheduler(
            self.store,
            self.clock,
            self.lifecycle(),
            self.service,
            cast(Any, None),
            RightsLookup(self.store, RightsPolicy(ME)),
            choices,
            Settings(Path("/nonexistent")),
            lambda reply: None,
            lambda uow, owner: False,
        )
        await self.work()

    async def begin(self) -> None:
        await self.service.add(NewSchedule(ME, self.recurrence, "UTC", "water the plants", name="task"))

    async def work(self) -> None:
        await self.scheduler.poll()
        await self.scheduler.finish(2**40)

    async def is_over(self) -> bool:
        await self.work()
        schedule = await self.service.find(ME, "task")
        return bool(await self.store.read(lambda uow: uow.schedules.occurrences(schedule.id, 1)))


class OneTimeTask(HourlyTask):
    """A reminder."""

    recurrence = "in 1h"


class TaskOutput(Subject):
    """The next attempt to deliver the result of a scheduled task."""

    lasts_s = 6 * HOUR_S

    async def begin(self) -> None:
        retry_at = self.clock.now() + 6 * HOUR_S
        failed = Occurrence("task", EPOCH, ME, OccurrenceState.DELIVERING, retry_at=retry_at)
        await self.store.write(lambda uow: uow.schedules.add_occurrence(failed))

    async def is_over(self) -> bool:
        return bool(await self.store.read(lambda uow: uow.schedules.open_occurrences(self.clock.now(), 9)))


class IdleSession(Subject):
    """A conversation that expires after an hour."""

    lasts_s = HOUR_S
    policy = ResetPolicy(idle_s=HOUR_S)

    async def open(self) -> None:
        self.talk = self.lifecycle(ResetPolicies(self.policy))
        now, holder = self.clock.now(), f"process {next(_ids)}"
        lease = await self.store.write(lambda uow: uow.leases.acquire(f"timers {holder}", holder, now, 15.0))
        assert lease is not None
        self.lease: Lease = lease
        await self.work()

    async def work(self) -> None:
        await self.talk.expire_due(self.lease)

    async def begin(self) -> None:
        await self.turn(self.talk)

    async def is_over(self) -> bool:
        await self.work()
        return await self.talk.current(TELEGRAM) is None


class DailySession(IdleSession):
    """A conversation that expires at four in the morning."""

    lasts_s = (4 * HOUR_S - EPOCH) % (24 * HOUR_S)
    policy = ResetPolicy(daily_hour=4)


class SessionAfterMessage(IdleSession):
    """A conversation whose message was accepted before the clock was moved, and is answered afterwards."""

    async def begin(self) -> None:
        await self.talk.cross(TELEGRAM, New(), owner=ME)
        await self.talk.accept(Inbound(TELEGRAM, ME, "hello"))
        self.answered = False

    async def open(self) -> None:
        await super().open()
        self.answered = False

    async def is_over(self) -> bool:
        if not self.answered:
            self.answered = True
            claim = await self.talk.begin_turn(TELEGRAM)
            if claim is not None:
                await self.talk.commit_turn(claim, (Message(Role.USER, "hello"),), "hi")
        return await super().is_over()


class PairingCode(Subject):
    """A stranger who has a code gets no other one."""

    lasts_s = HOUR_S

    async def open(self) -> None:
        self.pairings = Pairings(self.store, self.clock)

    async def begin(self) -> None:
        pairing = await self.pairings.offer("telegram", "7", "Bea", "CODE2345")
        assert pairing is not None
        await self.pairings.mark_sent(pairing, TELEGRAM, "1")

    async def is_over(self) -> bool:
        over = await self.pairings.may_offer("telegram", "7")
        assert over == (not (await self.pairings.list_all()).waiting)
        return over


class Lockout(PairingCode):
    """An approver who typed too many wrong codes."""

    async def begin(self) -> None:
        for _ in range(WRONG_MAX):
            with pytest.raises((NotFound, LockedOut)):
                await self.pairings.approve("WRONG", scope=TERMINAL)

    async def is_over(self) -> bool:
        with pytest.raises((NotFound, LockedOut)) as refused:
            await self.pairings.approve("WRONG", scope=TERMINAL)
        return refused.type is NotFound


class RateLimit(Subject):
    """A person who wrote too many messages."""

    lasts_s = 60.0

    async def open(self) -> None:
        self.limiter = RateLimiter(1)

    async def begin(self) -> None:
        assert self.limiter.refusal(ME, self.clock.elapsed()) is None

    async def is_over(self) -> bool:
        return self.limiter.refusal(ME, self.clock.elapsed()) is None


class SpendingLimit(Subject):
    """A person who spent the daily limit."""

    lasts_s = 24 * HOUR_S + 1.0

    async def begin(self) -> None:
        await self.turn(self.lifecycle())
        assert await self.is_over(), "the first reservation is within the limit"

    async def is_over(self) -> bool:
        lifecycle = self.lifecycle()
        ref = await lifecycle.current(TELEGRAM)
        assert ref is not None
        try:
            await lifecycle.reserve_spend(ref, "turn", "a/model", 0.6, limit_per_day=1.0)
        except BudgetExceeded:
            return False
        return True


class FailedReview(Subject):
    """The next attempt of a review."""

    lasts_s = 1200.0

    async def begin(self) -> None:
        session_id = await self.turn(self.lifecycle())
        now = self.clock.now()
        await self.store.write(lambda uow: uow.reviews.add(session_id, ReviewWindow(1, 1), now))
        claimed = await self.store.write(lambda uow: claim_review(uow, "here", now))
        assert claimed is not None
        again_at = now + self.lasts_s
        await self.store.write(lambda uow: uow.reviews.end(claimed[0], ReviewState.WAITING, again_at))

    async def is_over(self) -> bool:
        return await self.store.read(lambda uow: uow.reviews.is_due(self.clock.now()))


class KeptUpdate(Subject):
    """The next attempt to handle an update of a platform."""

    lasts_s = HOUR_S

    async def begin(self) -> None:
        now = self.clock.now()
        update = FailedUpdate("fake", "bot", "7", "42", ME, "{}", "KeyError", 9, now, now + self.lasts_s)
        await self.store.write(lambda uow: uow.failed_updates.add(update))

    async def is_over(self) -> bool:
        return bool(await self.store.read(lambda uow: uow.failed_updates.due(self.clock.now(), 9)))


class CompressionPause(Subject):
    """The pause after a failed summary."""

    lasts_s = 300.0

    async def open(self) -> None:
        self.states = CompressionStates(self.store, self.clock)

    async def begin(self) -> None:
        state = await self.states.load("session", "a/model")
        state.pause("down", self.clock.now())
        await self.states.put("session", state)

    async def is_over(self) -> bool:
        return not (await self.states.load("session", "a/model")).is_paused(self.clock.now())


SUBJECTS = [
    LaneLease,
    Cursor,
    ProviderBreaker,
    RecallBreaker,
    HourlyTask,
    OneTimeTask,
    TaskOutput,
    IdleSession,
    DailySession,
    SessionAfterMessage,
    PairingCode,
    Lockout,
    RateLimit,
    SpendingLimit,
    FailedReview,
    KeptUpdate,
    CompressionPause,
]
IN_MEMORY = (RecallBreaker, RateLimit)


class World:
    """A store, a clock and one process at a time."""

    def __init__(self, folder: Path, make: type[Subject]) -> None:
        self._path = folder / "everthread.db"
        self._make = make
        self.clock = StillClock(1000.0)
        self.set_wall(EPOCH)

    def set_wall(self, now: float) -> None:
        """Set the wall clock; no time passes."""
        self.clock.ahead_s = now - self.clock.time

    def move_wall(self, seconds: float) -> None:
        self.clock.ahead_s += seconds

    async def start(self) -> Subject:
        self._store = await SqliteStore.open(self._path)
        subject = self._make(self._store, self.clock)
        await subject.open()
        return subject

    async def restart(self, off_s: float = 1.0) -> Subject:
        """Start another process after the machine was off for a while. Elapsed time begins anew."""
        await self._store.aclose()
        now = self.clock.now() + off_s
        self.clock.time = 5.0
        self.set_wall(now)
        return await self.start()

    async def stop(self) -> None:
        await self._store.aclose()


Scenario = Callable[[World], Awaitable[None]]


async def over_soon(world: World, subject: Subject) -> None:
    """Check that the state is over at once, or after no more than its time."""
    if not await subject.is_over():
        world.clock.time += subject.lasts_s
        assert await subject.is_over()


async def time_passes(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    assert not await subject.is_over()
    holds_s = subject.holds_s or subject.lasts_s - STEP_S
    world.clock.time += holds_s
    assert not await subject.is_over()
    world.clock.time += subject.lasts_s - holds_s
    assert await subject.is_over()


async def suspended(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    assert not await subject.is_over()
    world.clock.time += 30 * HOUR_S
    assert await subject.is_over()


async def a_year_off(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    assert not await subject.is_over()
    assert await (await world.restart(YEAR_S)).is_over()


async def small_step_back(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    world.move_wall(-STEP_S)
    assert not await subject.is_over(), "a small correction ends nothing early"
    world.clock.time += subject.lasts_s + STEP_S
    assert await subject.is_over()


async def ahead_and_corrected(world: World) -> None:
    world.move_wall(YEAR_S)
    subject = await world.start()
    await subject.begin()
    world.move_wall(-YEAR_S)
    await over_soon(world, subject)


async def ahead_for_a_while_and_corrected(world: World) -> None:
    subject = await world.start()
    world.move_wall(YEAR_S)
    await subject.work()
    await subject.begin()
    world.clock.time += STEP_S
    world.move_wall(-YEAR_S)
    await over_soon(world, subject)


async def ahead_and_corrected_at_a_restart(world: World) -> None:
    world.move_wall(YEAR_S)
    subject = await world.start()
    await subject.begin()
    subject = await world.restart(-YEAR_S)
    await over_soon(world, subject)


async def ahead_by_little_more_than_is_accepted(world: World) -> None:
    world.move_wall(AHEAD_S_MAX + STEP_S)
    subject = await world.start()
    await subject.begin()
    world.move_wall(-AHEAD_S_MAX - STEP_S)
    await over_soon(world, subject)


async def behind_and_corrected(world: World) -> None:
    world.move_wall(-YEAR_S)
    subject = await world.start()
    await subject.begin()
    assert not await subject.is_over()
    world.move_wall(YEAR_S)
    world.clock.time += 0.0 if not isinstance(subject, IN_MEMORY) else subject.lasts_s
    assert await subject.is_over(), "the clock is accepted"


async def falls_behind(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    world.move_wall(-YEAR_S)
    await over_soon(world, subject)


async def falls_behind_at_a_restart(world: World) -> None:
    subject = await world.start()
    await subject.begin()
    subject = await world.restart(-YEAR_S)
    await over_soon(world, subject)


async def boots_in_1970(world: World) -> None:
    """A clock that is certainly wrong changes nothing that is stored, except leases, which are renewed all the time."""
    subject = await world.start()
    await subject.begin()
    now = world.clock.now()
    subject = await world.restart(-now)
    await subject.work()
    world.set_wall(now + STEP_S)
    assert isinstance(subject, (*IN_MEMORY, LaneLease)) or not await subject.is_over()
    world.clock.time += subject.lasts_s
    assert await subject.is_over()


SCENARIOS: list[Scenario] = [
    boots_in_1970,
    time_passes,
    suspended,
    a_year_off,
    small_step_back,
    ahead_and_corrected,
    ahead_for_a_while_and_corrected,
    ahead_and_corrected_at_a_restart,
    ahead_by_little_more_than_is_accepted,
    behind_and_corrected,
    falls_behind,
    falls_behind_at_a_restart,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.__name__)
async def test_nothing_waits_longer_than_it_should(subject: type[Subject], scenario: Scenario, tmp_path: Path) -> None:
    world = World(tmp_path, subject)
    await scenario(world)
    await world.stop()
