"""Lanes within one process, with leases that exclude other processes on the same store.

A lease is renewed by a heartbeat. A process that stops for longer than its lease loses it. Every write of a lane
checks the fence, so a process that continues afterwards is refused before it can write.
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
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.lanes")

LEASE_S = 15.0
POLL_S = 0.1
_SHORTENED_LEASES = 4
"""A lease that ends too far ahead is shortened to this many lease times: a live holder has renewed it by then."""
BACKOFF = Backoff(first_s=1.0, max_s=60.0)


class _Lane:
    def __init__(self, name: str, drain: Drain) -> None:
        self.name = name
        self.drain = drain
        self.lease: Lease | None = None
        self.awake = asyncio.Event()
        self.failures = 0
        self.reported = ""
        self.store_problem = ""


class LocalLanes:
    """Serve lanes as long as `run` runs."""

    def __init__(
        self, store: Store, clock: Clock, holder: str, *, lease_s: float = LEASE_S, poll_s: float = POLL_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._holder = holder
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._lanes: dict[str, _Lane] = {}
        self._watchers: list[Callable[[], Awaitable[None]]] = []
        self._seen: int | None = None

    @property
    def holder(self) -> str:
        return self._holder

    def serve(self, name: str, drain: Drain) -> None:
        self._lanes[name] = _Lane(name, drain)

    def wake(self, name: str) -> None:
        if name in self._lanes:
            self._lanes[name].awake.set()

    def watch(self, work: Callable[[], Awaitable[None]]) -> None:
        self._watchers.append(work)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._forever(self._beat, self._lease_s / 3), name="lanes:heartbeat")
                tasks.create_task(self._forever(self._watch, self._poll_s), name="lanes:watch")
                for lane in self._lanes.values():
                    tasks.create_task(self._serve(lane), name=f"lane:{lane.name}")
        finally:
            # Release the leases in any case: the next process need not wait for them to expire.
            await asyncio.shield(self._release_all())

    async def _serve(self, lane: _Lane) -> None:
        while True:
            lane.awake.clear()
            wait_s = self._lease_s / 3
            try:
                due = await self._drain(lane)
                lane.failures, lane.reported, lane.store_problem = 0, "", ""
                if due is not None:
                    wait_s = min(max(due - self._clock.now(), 0.0), wait_s)
            except Fenced as error:
                log.info("%s: %s", lane.name, error)
                lane.lease = None
            except StoreError as error:
                # Once for each problem: the store may be unavailable for long.
                if str(error) != lane.store_problem:
                    lane.store_problem = str(error)
                    log.warning("%s: %s", lane.name, error)
                wait_s = BACKOFF.first_s
            except (Exception, asyncio.CancelledError) as error:
                if _is_being_cancelled():
                    raise
                log.exception("%s: unexpected error; the lane continues after a pause", lane.name)
                await self._pause(lane, f"{error!r}")
                continue
            await _event_within(lane.awake, wait_s)

    async def _pause(self, lane: _Lane, problem: str) -> None:
        """Wait after an unexpected error. Nothing wakes the lane meanwhile: every commit would, including its own
        report.
        """
        lane.failures += 1
        if problem != lane.reported:
            await self._report(lane, problem)
        await self._clock.sleep(BACKOFF.delay_s(lane.failures))

    async def _report(self, lane: _Lane, problem: str) -> None:
        """Add an incident, once for each problem, if the store is available."""
        incident = Incident(self._clock.now(), f"lane:{lane.name}", None, problem)
        try:
            await self._store.write(lambda uow: uow.incidents.add(incident))
            lane.reported = problem
        except Exception as error:  # noqa: BLE001 - the store may be the very thing that fails
            log.warning("%s: could not record the incident: %s", lane.name, error)

    async def _drain(self, lane: _Lane) -> float | None:
        if lane.lease is None:
            await self._acquire(lane)
        return await lane.drain(lane.lease) if lane.lease is not None else None

    async def _acquire(self, lane: _Lane) -> None:
        now = self._clock.now
        # Every commit wakes this lane, and usually another process holds it: a read is enough to see that.
        if await self._store.read_inline(lambda uow: uow.leases.is_held(lane.name, now())):
            return
        granting = asyncio.ensure_future(
            self._store.write(lambda uow: uow.leases.acquire(lane.name, self._holder, now(), self._lease_s))
        )
        try:
            lane.lease = await asyncio.shield(granting)
        except asyncio.CancelledError:
            # A lease that was granted meanwhile must be known, to be released.
            await asyncio.wait({granting})
            lane.lease = None if granting.exception() else granting.result()
            raise

    async def _beat(self) -> None:
        def keep_alive(uow: UnitOfWork) -> None:
            # Read here: a process that was stopped before its write must not shorten the leases of others.
            now = self._clock.now()
            uow.leases.keep_alive(self._holder, now, self._lease_s)
            uow.leases.shorten(now, _SHORTENED_LEASES * self._lease_s)

        await self._store.write(keep_alive)
        for lane in self._lanes.values():
            lease = lane.lease
            if lease is not None and not await self._renew(lease) and lane.lease is lease:
                lane.lease = None
                lane.awake.set()

    async def _renew(self, lease: Lease) -> bool:
        return await self._store.write(lambda uow: uow.leases.renew(lease, self._clock.now(), self._lease_s))

    async def _watch(self) -> None:
        """Wake all lanes and call the watchers after a commit of this or another process."""
        changed = await self._store.changed()
        if changed != self._seen:
            for lane in self._lanes.values():
                lane.awake.set()
            for work in self._watchers:
                await work()
            # Only now: if the store fails meanwhile, the watchers are called again.
            self._seen = changed

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        problem = ""
        while True:
            wait_s = every_s
            try:
                await work()
                problem = ""
            except StoreError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("lanes: %s", error)
                wait_s = max(every_s, BACKOFF.first_s)
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                # Only an error ends the group, and so is noticed; a cancelled task would just be missing.
                raise RuntimeError("a lane task was cancelled unexpectedly") from error
            await self._clock.sleep(wait_s)

    async def _release_all(self) -> None:
        leases = [lane.lease for lane in self._lanes.values() if lane.lease is not None]
        for lane in self._lanes.values():
            lane.lease = None
        if leases:

            def release(uow: UnitOfWork) -> None:
                for lease in leases:
                    uow.leases.release(lease)

            try:
                await self._store.write(release)
            except StoreError as error:
                log.warning("could not release leases; they expire by themselves: %s", error)


def _is_being_cancelled() -> bool:
    """Return whether this task is being cancelled, or a stray CancelledError came out of an awaited call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _event_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
