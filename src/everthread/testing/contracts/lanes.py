"""Contract of lanes. Subclass `LanesContract` in a test module and define two fixtures:

    class TestMyLanes(LanesContract):
        @pytest.fixture
        def open_store(self, tmp_path): ...             # as for StoreContract

        @pytest.fixture
        def make_lanes(self):
            def make_lanes(store, clock, holder, *, lease_s):
                return MyLanes(store, clock, holder, lease_s=lease_s)

            return make_lanes

A holder stands for a process: lanes with different holders, each on its own handle, compete for the same leases.
Commits of other processes must be noticed within `NOTICED_S`. Run by tests/unit/adapters/lanes/test_local.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from everthread.domain.errors import Fenced, StoreBusy
from everthread.domain.model import Binding, ChatType, Lease, SessionKey
from everthread.ports.clock import Clock
from everthread.ports.lanes import Lanes
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import OpenStore, StoreFixture

T = TypeVar("T")

NOTICED_S = 4.0
LONG_S = 60.0
SHORT_S = 0.6
LANE = "journal:memory"


class MakeLanes(Protocol):
    def __call__(self, store: Store, clock: Clock, holder: str, *, lease_s: float) -> Lanes: ...


class RealClock:
    """Real clock that can be stopped. A process with a stopped clock does not notice that its leases expire."""

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._behind_s = 0.0
        self._going = asyncio.Event()
        self._going.set()

    def now(self) -> float:
        return self._stopped_at if self._stopped_at is not None else time.monotonic() - self._behind_s

    def elapsed(self) -> float:
        return self.now() + self._behind_s

    def put_back(self, seconds: float) -> None:
        self._behind_s += seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._going.wait()

    def stop(self) -> None:
        self._stopped_at = self.now()
        self._going.clear()

    def go_on(self) -> None:
        self._stopped_at = None
        self._going.set()


class BusyStore:
    """Store that reports busy on demand and counts writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.busy = False
        self.refused: set[str] = set()
        self.writes = 0

    @property
    def damage(self) -> str:
        return self._store.damage

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        self._refuse("write")
        self.writes += 1
        return await self._store.write(work)

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.write(work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        self._refuse("read")
        return await self._store.read(work)

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        self._refuse("read_inline")
        return await self._store.read_inline(work)

    async def index(self) -> None:
        await self._store.index()

    async def changed(self) -> int:
        self._refuse("changed")
        return await self._store.changed()

    async def tidy(self) -> bool:
        return await self._store.tidy()

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        await self._store.copy(target, progress)

    async def aclose(self) -> None:
        await self._store.aclose()

    def _refuse(self, what: str) -> None:
        if self.busy:
            self.refused.add(what)
            raise StoreBusy(f"{what}: another program holds the write lock; try again")


class Worker:
    """Drain that records its calls and detects concurrent drains by other holders."""

    def __init__(self, holder: str = "", shared: list[str] | None = None) -> None:
        self.holder = holder
        self.leases: list[Lease] = []
        self.times: list[float] = []
        self.due: Callable[[], float | None] = lambda: None
        self.busy_s = 0.0
        self._at_work = shared if shared is not None else []
        self.met_others = False

    @property
    def drained(self) -> int:
        return len(self.leases)

    async def drain(self, lease: Lease) -> float | None:
        self.times.append(time.monotonic())
        self.leases.append(lease)
        self._at_work.append(self.holder)
        try:
            if self.busy_s:
                await asyncio.sleep(self.busy_s)
            self.met_others = self.met_others or len(self._at_work) > 1
        finally:
            self._at_work.remove(self.holder)
        return self.due()

    async def wait_idle(self, seconds: float = 0.4) -> None:
        """Wait until the drain has not been called for `seconds`."""
        async with asyncio.timeout(NOTICED_S):
            await _until(lambda: self.drained > 0)
            seen = -1
            while self.drained != seen:
                seen = self.drained
                await asyncio.sleep(seconds)


class Process:
    """Lanes of one holder on its own handle. `store` can report busy."""

    def __init__(self, store: BusyStore, clock: RealClock, lanes: Lanes) -> None:
        self.store = store
        self.clock = clock
        self.lanes = lanes

    def serve(self, name: str = LANE, worker: Worker | None = None) -> Worker:
        worker = worker or Worker()
        self.lanes.serve(name, worker.drain)
        return worker


class StartProcess(Protocol):
    def __call__(
        self, holder: str = "here", *, clock: RealClock | None = None, lease_s: float = LONG_S
    ) -> AbstractAsyncContextManager[Process]: ...


class LanesContract(StoreFixture):
    """Guarantees of lanes that the core relies on."""

    @pytest.fixture
    def make_lanes(self) -> MakeLanes:
        raise NotImplementedError("give the contract a fixture `make_lanes`; see its module's docstring")

    @pytest.fixture
    def start(self, open_store: OpenStore, make_lanes: MakeLanes) -> StartProcess:
        @asynccontextmanager
        async def start(
            holder: str = "here", *, clock: RealClock | None = None, lease_s: float = LONG_S
        ) -> AsyncGenerator[Process]:
            clock = clock or RealClock()
            async with aclosing(BusyStore(await open_store())) as store:
                yield Process(store, clock, make_lanes(store, clock, holder, lease_s=lease_s))

        return start

    @in_loop
    async def test_a_wake_runs_the_drain_of_its_lane_only(self, start: StartProcess) -> None:
        async with start() as process:
            worker, other = process.serve(), process.serve("other")
            assert process.lanes.holder == "here"
            async with running(process.lanes):
                await worker.wait_idle()
                await other.wait_idle()
                before, others_before = worker.drained, other.drained
                process.lanes.wake("unknown lane")
                process.lanes.wake(LANE)
                await _until(lambda: worker.drained > before)
                assert other.drained == others_before
            assert {(lease.name, lease.holder) for lease in worker.leases} == {(LANE, "here")}

    @in_loop
    async def test_a_wake_during_a_drain_is_not_lost(self, start: StartProcess) -> None:
        async with start() as process:
            worker = process.serve()
            async with running(process.lanes):
                await worker.wait_idle()
                before = worker.drained
                worker.busy_s = 0.2
                process.lanes.wake(LANE)
                await _until(lambda: worker.drained == before + 1)
                process.lanes.wake(LANE)
                await _until(lambda: worker.drained == before + 2)

    @in_loop
    async def test_a_lane_is_drained_again_when_it_is_due(self, start: StartProcess) -> None:
        async with start() as process:
            clock, worker = process.clock, process.serve()
            async with running(process.lanes):
                await worker.wait_idle()
                due = clock.now() + 0.5
                worker.due = lambda: due if clock.now() < due else None
                before = worker.drained
                process.lanes.wake(LANE)
                await _until(lambda: worker.times[-1] >= due)
                early = [time for time in worker.times[before:] if time < due]
                # The call by `wake`, and at most one more because the clocks may differ by milliseconds.
                assert 1 <= len(early) <= 2
                assert worker.times[-1] < due + 1.0

    @in_loop
    async def test_a_commit_of_another_process_wakes_the_lane(self, start: StartProcess) -> None:
        """A commit by another process does not call `wake` here. Its work must still be drained within `NOTICED_S`."""
        async with start() as process, start("elsewhere") as elsewhere:
            worker = process.serve()
            async with running(process.lanes):
                await worker.wait_idle()
                before = worker.drained
                await elsewhere.store.write(_any_change)
                await _until(lambda: worker.drained > before)

    @in_loop
    async def test_a_commit_of_another_process_calls_the_watchers(self, start: StartProcess) -> None:
        async with start() as process, start("elsewhere") as elsewhere:
            calls: list[str] = []

            async def first() -> None:
                calls.append("first")
                if len(calls) == 1:
                    raise StoreBusy("busy")

            async def second() -> None:
                calls.append("second")

            process.lanes.watch(first)
            process.lanes.watch(second)
            async with running(process.lanes):
                # The first call fails with the store: it is repeated, although nothing changes meanwhile.
                await _until(lambda: calls[:3] == ["first", "first", "second"])
                before = len(calls)
                await elsewhere.store.write(_any_change)
                await _until(lambda: len(calls) >= before + 2)

    @in_loop
    async def test_two_holders_never_drain_a_lane_concurrently(self, start: StartProcess) -> None:
        async with start("a") as process_a, start("b") as process_b:
            draining: list[str] = []
            a, b = process_a.serve(worker=Worker("a", draining)), process_b.serve(worker=Worker("b", draining))
            a.busy_s = b.busy_s = 0.02
            async with running(process_b.lanes):
                async with running(process_a.lanes):
                    for _ in range(20):
                        process_a.lanes.wake(LANE)
                        process_b.lanes.wake(LANE)
                        await asyncio.sleep(0.02)
                    first, second = (a, b) if a.drained else (b, a)
                    assert second.drained == 0
                    assert first.drained > 1
                # The lanes of `a` have ended. If `a` held the lane, `b` must take over immediately.
                await _until(lambda: b.drained > 0)
            assert [a.met_others, b.met_others] == [False, False]
            fences = [*(lease.fence for lease in a.leases), *(lease.fence for lease in b.leases)]
            assert fences == sorted(fences)

    @in_loop
    async def test_a_heartbeat_keeps_the_lease_through_a_long_drain(self, start: StartProcess) -> None:
        async with start("a", lease_s=SHORT_S) as process_a, start("b", lease_s=SHORT_S) as process_b:
            a, b = process_a.serve(), process_b.serve()
            a.busy_s = 3 * SHORT_S
            async with running(process_a.lanes):
                await _until(lambda: a.drained == 1)
                async with running(process_b.lanes):
                    await _until(lambda: a.drained == 2)
                    assert b.drained == 0
                    await process_a.store.write(lambda uow: uow.leases.check(a.leases[0]))

    @in_loop
    async def test_a_stopped_holder_loses_the_lane_and_its_late_write_is_fenced(self, start: StartProcess) -> None:
        async with start("a", lease_s=SHORT_S) as process_a, start("b", lease_s=SHORT_S) as process_b:
            go_on, outcome = asyncio.Event(), list[BaseException | None]()

            async def stuck(lease: Lease) -> float | None:
                await go_on.wait()
                try:
                    await process_a.store.write(lambda uow: uow.leases.check(lease))
                except Fenced as error:
                    outcome.append(error)
                    raise
                outcome.append(None)
                return None

            process_a.lanes.serve(LANE, stuck)
            b = process_b.serve()
            async with running(process_a.lanes) as a_runs:
                await asyncio.sleep(0.1)
                process_a.clock.stop()
                async with running(process_b.lanes):
                    await _until(lambda: b.drained > 0)
                    go_on.set()
                    await _until(lambda: bool(outcome))
                    assert isinstance(outcome[0], Fenced)
                    process_a.clock.go_on()
                    await asyncio.sleep(0.2)
                    assert len(outcome) == 1
                # The fenced holder drains again once the lane is free.
                await _until(lambda: outcome[-1] is None)
                assert not a_runs.done()

    @in_loop
    async def test_after_the_clock_is_put_back_the_lane_of_a_dead_holder_is_free_soon(
        self, start: StartProcess
    ) -> None:
        async with start("b", lease_s=SHORT_S) as process:
            clock, store, worker = process.clock, process.store, process.serve()
            await store.write(lambda uow: uow.leases.acquire(LANE, "dead", clock.now(), SHORT_S))
            await store.write(lambda uow: uow.leases.keep_alive("dead", clock.now(), SHORT_S))
            clock.put_back(3600.0)
            async with running(process.lanes):
                await _until(lambda: worker.drained > 0)
                async with asyncio.timeout(NOTICED_S):
                    while await store.read(lambda uow: uow.leases.is_alive("dead", clock.now())):
                        await asyncio.sleep(0.05)

    @in_loop
    async def test_after_the_clock_is_put_back_a_living_holder_keeps_its_lane(self, start: StartProcess) -> None:
        clock = RealClock()
        async with (
            start("a", clock=clock, lease_s=SHORT_S) as process_a,
            start("b", clock=clock, lease_s=SHORT_S) as process_b,
        ):
            a, b = process_a.serve(), process_b.serve()
            async with running(process_a.lanes):
                await _until(lambda: a.drained > 0)
                async with running(process_b.lanes):
                    clock.put_back(3600.0)
                    before = a.drained
                    for _ in range(20):
                        process_b.lanes.wake(LANE)
                        await asyncio.sleep(SHORT_S / 8)
                    await _until(lambda: a.drained > before)
                    assert b.drained == 0
                    assert len({lease.fence for lease in a.leases}) == 1

    @in_loop
    async def test_a_process_without_the_lane_writes_nothing_when_others_commit(self, start: StartProcess) -> None:
        async with start("a") as process_a, start("b") as process_b:
            clock, b = process_b.clock, process_b.serve()
            await process_a.store.write(lambda uow: uow.leases.acquire(LANE, "a", clock.now(), LONG_S))
            async with running(process_b.lanes):
                await asyncio.sleep(0.3)
                before = process_b.store.writes
                for _ in range(10):
                    await process_a.store.write(_any_change)
                    process_b.lanes.wake(LANE)
                    await asyncio.sleep(0.02)
                assert process_b.store.writes == before
                assert b.drained == 0

    @in_loop
    async def test_a_drain_that_the_store_fails_is_retried(self, start: StartProcess) -> None:
        async with start() as process:
            worker, failures = Worker(), 2

            async def drain(lease: Lease) -> float | None:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise StoreBusy("another program holds the write lock; try again")
                return await worker.drain(lease)

            process.lanes.serve(LANE, drain)
            async with running(process.lanes):
                await _until(lambda: worker.drained > 0)

    @in_loop
    async def test_lanes_survive_a_store_that_is_busy_for_a_while(self, start: StartProcess) -> None:
        async with start(lease_s=SHORT_S) as process:
            store, worker = process.store, process.serve()
            async with running(process.lanes) as runs:
                await _until(lambda: worker.drained > 0)
                store.busy = True
                await _until(lambda: bool(store.refused))
                await asyncio.sleep(SHORT_S)
                store.busy = False
                before = worker.drained
                await store.write(_any_change)
                await _until(lambda: worker.drained > before)
                assert not runs.done()

    @in_loop
    async def test_a_lane_that_is_stuck_delays_no_other(self, start: StartProcess) -> None:
        async with start() as process:

            async def stuck(lease: Lease) -> float | None:
                await asyncio.Event().wait()
                return None

            process.lanes.serve("stuck", stuck)
            worker = process.serve()
            async with running(process.lanes):
                await _until(lambda: worker.drained > 0)

    @pytest.mark.parametrize("error", [KeyError("unforeseen"), asyncio.CancelledError()])
    @in_loop
    async def test_a_lane_that_fails_is_reported_and_retried_and_stops_no_other(
        self, start: StartProcess, error: BaseException
    ) -> None:
        async with start() as process:
            worker, other, failures = Worker(), process.serve("other"), 2
            failed_at: list[float] = []

            async def drain(lease: Lease) -> float | None:
                if len(failed_at) < failures:
                    failed_at.append(time.monotonic())
                    raise error
                return await worker.drain(lease)

            process.lanes.serve(LANE, drain)
            async with running(process.lanes) as runs:
                await _until(lambda: bool(failed_at))
                before = other.drained
                process.lanes.wake("other")
                process.lanes.wake(LANE)
                await _until(lambda: other.drained > before)
                await _until(lambda: worker.drained > 0)
                assert not runs.done()
            times = [*failed_at, worker.times[0]]
            assert all(later - earlier > 0.3 for earlier, later in pairwise(times)), "there was no pause between tries"
            incidents = await process.store.read(lambda uow: uow.incidents.newest(9))
            assert [(incident.source, incident.text) for incident in incidents] == [(f"lane:{LANE}", repr(error))]

    @in_loop
    async def test_a_lane_that_fails_while_the_store_is_busy_is_retried(self, start: StartProcess) -> None:
        async with start() as process:
            store, worker, broken = process.store, Worker(), True

            async def drain(lease: Lease) -> float | None:
                if broken:
                    store.busy = True
                    raise KeyError("unforeseen")
                return await worker.drain(lease)

            process.lanes.serve(LANE, drain)
            async with running(process.lanes) as runs:
                await _until(lambda: "write" in store.refused)
                store.busy = broken = False
                await _until(lambda: worker.drained > 0)
                assert not runs.done()

    @in_loop
    async def test_a_lane_that_fails_can_still_be_stopped(self, start: StartProcess) -> None:
        """Also if the drain fails because it is stopped."""
        async with start() as process:
            draining = asyncio.Event()

            async def drain(lease: Lease) -> float | None:
                try:
                    draining.set()
                    await asyncio.Event().wait()
                finally:
                    raise KeyError("unforeseen")

            process.lanes.serve(LANE, drain)
            task = asyncio.ensure_future(process.lanes.run())
            await draining.wait()
            task.cancel()
            await asyncio.wait({task}, timeout=NOTICED_S)
            assert task.done()
            assert task.cancelled() or task.exception() is not None

    @in_loop
    async def test_a_cancelled_process_releases_its_leases(self, start: StartProcess) -> None:
        async with start() as process, start("elsewhere") as elsewhere:
            worker, _ = process.serve(), process.serve("other")
            async with running(process.lanes):
                await worker.wait_idle()
            for name in (LANE, "other"):
                lease = await elsewhere.store.write(
                    lambda uow, n=name: uow.leases.acquire(n, "elsewhere", process.clock.now(), LONG_S)
                )
                assert lease is not None
                assert lease.fence > worker.leases[-1].fence

    @in_loop
    async def test_leases_are_released_whenever_the_cancellation_comes(
        self, open_store: OpenStore, make_lanes: MakeLanes
    ) -> None:
        """Also if the cancellation interrupts taking a lease."""
        async with aclosing(await open_store()) as store:
            clock = RealClock()
            for step in range(40):
                lanes = make_lanes(store, clock, f"holder {step}", lease_s=LONG_S)
                lanes.serve(LANE, Worker().drain)
                async with running(lanes):
                    # Cancel later in each round, from before the first commit to after it.
                    await asyncio.sleep(step * 0.0001)
                lease = await store.write(lambda uow: uow.leases.acquire(LANE, "next", clock.now(), LONG_S))
                assert lease is not None, f"not released after {step} steps"
                await store.write(lambda uow, granted=lease: uow.leases.release(granted))


# ----------------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(lanes: Lanes) -> AsyncGenerator[asyncio.Task[None], None]:
    """Run the lanes for the duration of the block. Re-raise an error that `run` raises by itself."""
    task = asyncio.ensure_future(lanes.run())
    try:
        yield task
    finally:
        gave_up = task.done()
        task.cancel()
        await asyncio.wait({task})
        if gave_up:
            task.result()
    assert task.cancelled()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(NOTICED_S):
        while not holds():
            await asyncio.sleep(0.005)


def _any_change(uow: UnitOfWork) -> None:
    key = SessionKey("main", "cli", ChatType.DM, "1")
    known = uow.sessions.binding(key)
    uow.sessions.bind(Binding(key, "ann", None, known.epoch + 1 if known else 1))
