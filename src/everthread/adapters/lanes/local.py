"""Lanes inside one process, on leases that keep two processes on one file out of each other's way.

A lease has a heartbeat; a process that is stopped for longer than its lease loses it, and every write of a lane checks
the fence, so a process that wakes up again finds out before it can do harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from everthread.domain.backoff import Backoff
from everthread.domain.errors import Fenced, StoreError
from everthread.domain.model import Lease
from everthread.ports.clock import Clock
from everthread.ports.lanes import Drain
from everthread.store.leases import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.lanes")

LEASE_S = 15.0
POLL_S = 0.1
_LIFE_LEASES_MAX = 4
"""A process says that it is there for less than that many times the time of a lease."""
BACKOFF = Backoff(first_s=1.0, max_s=60.0)


class _Lane:
    def __init__(self, name: str, drain: Drain) -> None:
        self.name = name
        self.drain = drain
        self.lease: Lease | None = None
        self.awake = asyncio.Event()
        self.failures = 0
        self.reported = ""


class LocalLanes:
    """Serves lanes as long as `run` runs."""

    def __init__(
        self, store: Store, clock: Clock, holder: str, *, lease_s: float = LEASE_S, poll_s: float = POLL_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._lanes: dict[str, _Lane] = {}
        self._seen: int | None = None

    @property
    def holder(self) -> str:
        return self._holder

    def serve(self, name: str, drain: Drain) -> None:
        self._lanes[name] = _Lane(name, drain)

    def wake(self, name: str) -> None:
        if name in self._lanes:
            self._lanes[name].awake.set()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forever(self._beat, self._lease_s / 3), name="lanes:heartbeat")
                tasks.create_task(self._forever(self._watch, self._poll_s), name="lanes:watch")
                for lane in self._lanes.values():
                    tasks.create_task(self._serve(lane), name=f"lane:{lane.name}")
        finally:
            # Cancelled or not, the leases go back: the next process need not wait for them to run out.
            await asyncio.shield(self._give_back())

    async def _serve(self, lane: _Lane) -> None:
        while True:
            lane.awake.clear()
            wait_s = self._lease_s / 3
            try:
                due = await self._drain(lane)
                lane.failures, lane.reported = 0, ""
                if due is not None:
                    wait_s = min(max(due - self._clock.now(), 0.0), wait_s)
            except Fenced as error:
                log.info("%s: %s", lane.name, error)
                lane.lease = None
            except StoreError as error:
                log.warning("%s: %s", lane.name, error)
                wait_s = BACKOFF.first_s
            except (Exception, asyncio.CancelledError) as error:
                if _is_being_cancelled():
                    raise
                log.exception("%s: the lane has failed and goes on later", lane.name)
                await self._pause(lane, f"{error!r}")
                continue
            await _event_within(lane.awake, wait_s)

    async def _pause(self, lane: _Lane, problem: str) -> None:
        """Nothing wakes a lane that fails for reasons nobody foresaw: each commit would, and its own report is one."""
        lane.failures += 1
        if problem != lane.reported:
            await self._report(lane, problem)
        await self._clock.sleep(BACKOFF.delay_s(lane.failures))

    async def _report(self, lane: _Lane, problem: str) -> None:
        """Say it once where people see it, if the store lets us."""
        incident = Incident(self._clock.now(), f"lane:{lane.name}", None, problem)
        try:
            await self._store.write(lambda uow: uow.leases.add_incident(incident))
            lane.reported = problem
        except Exception as error:  # noqa: BLE001 - the store may be the very thing that fails
            log.warning("%s: can't be reported: %s", lane.name, error)

    async def _drain(self, lane: _Lane) -> float | None:
        if lane.lease is None:
            await self._acquire(lane)
        return await lane.drain(lane.lease) if lane.lease is not None else None

    async def _acquire(self, lane: _Lane) -> None:
        now = self._clock.now()
        # Each commit wakes us, and most of the time another process has the lane: to see that takes no write.
        if not await self._store.read_inline(lambda uow: uow.leases.may_acquire(lane.name, now, self._lease_s)):
            return
        granting = asyncio.ensure_future(
            self._store.write(lambda uow: uow.leases.acquire(lane.name, self._holder, now, self._lease_s))
        )
        try:
            lane.lease = await asyncio.shield(granting)
        except asyncio.CancelledError:
            # What was granted meanwhile must be known, to be given back.
            await asyncio.wait({granting})
            lane.lease = None if granting.exception() else granting.result()
            raise

    async def _beat(self) -> None:
        now = self._clock.now()

        def be_there(uow: UnitOfWork) -> None:
            uow.leases.keep_alive(self._holder, now, self._lease_s)
            uow.leases.bound_lives(now + _LIFE_LEASES_MAX * self._lease_s)

        await self._store.write(be_there)
        for lane in self._lanes.values():
            lease = lane.lease
            if lease is not None and not await self._renewed(lease, now) and lane.lease is lease:
                lane.lease = None
                lane.awake.set()

    async def _renewed(self, lease: Lease, now: float) -> bool:
        return await self._store.write(lambda uow: uow.leases.renew(lease, now, self._lease_s))

    async def _watch(self) -> None:
        """Somebody has committed, here or elsewhere: any lane may have work."""
        changed = await self._store.changed()
        if changed != self._seen:
            self._seen = changed
            for lane in self._lanes.values():
                lane.awake.set()

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            wait_s = every_s
            try:
                await work()
            except StoreError as error:
                log.warning("lanes: %s", error)
                wait_s = max(every_s, BACKOFF.first_s)
            await self._clock.sleep(wait_s)

    async def _give_back(self) -> None:
        held = [lane.lease for lane in self._lanes.values() if lane.lease is not None]
        for lane in self._lanes.values():
            lane.lease = None
        if held:

            def release(uow: UnitOfWork) -> None:
                for lease in held:
                    uow.leases.release(lease)

            try:
                await self._store.write(release)
            except StoreError as error:
                log.warning("leases are left to run out: %s", error)


def _is_being_cancelled() -> bool:
    """Whether somebody wants this task to end, or a cancellation that is none of ours came out of what it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _event_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
