"""Expire sessions when their timers are due.

`boundaries` and `turns` set a key's timer whenever it has none. A timer that fires too early is checked and set again.
When the clock returns after it was ahead, activities and timers that are ahead of it are lowered.
"""

from __future__ import annotations

from everthread.domain.boundary import Expire
from everthread.domain.clock_rules import credible_time, latest_deadline
from everthread.domain.model import Lease, SessionKey
from everthread.domain.reset_policy import timer_name
from everthread.lifecycle.base import LifecycleBase, transaction
from everthread.lifecycle.boundaries import BoundaryResult, cross, log_boundary
from everthread.store.unit_of_work import UnitOfWork

RECHECK_S = 30.0
"""Shortest time until a session whose expiry was refused is checked again."""
_TIMERS_PER_RUN = 64


class ExpiryOperations(LifecycleBase):
    """The drain of the expiry lane."""

    async def expire_due(self, lease: Lease) -> float | None:
        """Cross `Expire` for every key whose timer is due. Returns the time of the next timer."""
        now, elapsed = self._clock.now(), self._clock.elapsed()
        if self._watched_lease != lease or self._clock_watch.is_set_back(now, elapsed):
            await self._lower_activities(lease)
            self._clock_watch.accept(now, elapsed)
            self._watched_lease = lease
        due = await self._store.read_inline(lambda uow: uow.leases.due_timers(now, _TIMERS_PER_RUN))
        for timer in due:
            crossing = await self._expire(timer.key, lease)
            if crossing is not None and crossing.refusal is None:
                log_boundary(crossing)
        if len(due) == _TIMERS_PER_RUN:
            return now
        return await self._store.read_inline(lambda uow: uow.leases.next_timer())

    @transaction
    def _expire(self, uow: UnitOfWork, key: SessionKey, lease: Lease) -> BoundaryResult | None:
        context = self._context("expiry")
        uow.leases.check(lease)
        uow.leases.disarm(timer_name(key))
        binding = uow.sessions.binding(key)
        if binding is None or binding.session_id is None:
            return None
        crossing = cross(uow, key, Expire(self._policies.of(key), context.now), binding.owner, context)
        session = uow.sessions.get(binding.session_id)
        if crossing.refusal is not None and session is not None:
            if credible_time(session.active_at, context.now) < session.active_at:
                self._lower(uow, context.now)
                session = session.replace(active_at=context.now)
            timer = self._policies.timer(key, session.active_at, not_before=context.now + RECHECK_S)
            if timer is not None:
                uow.leases.arm(timer)
        return crossing

    async def _lower_activities(self, lease: Lease) -> None:
        """Replace activities that are ahead of the clock by the present, and set the timers of their keys again."""

        def lower(uow: UnitOfWork) -> None:
            uow.leases.check(lease)
            self._lower(uow, self._clock.now())

        newest = await self._store.read(lambda uow: uow.sessions.newest_activity())
        # A write is rarely needed.
        if credible_time(newest, self._clock.now()) < newest:
            await self._store.write(lower)

    def _lower(self, uow: UnitOfWork, now: float) -> None:
        for key in uow.sessions.lower_activities(now, latest_deadline(now)):
            uow.leases.disarm(timer_name(key))
            if (timer := self._policies.timer(key, now)) is not None:
                uow.leases.arm(timer)
