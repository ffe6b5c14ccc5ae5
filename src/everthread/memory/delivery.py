"""Move each provider's cursors along the sessions' logs: in order per session, at least once. The only cursor writer.

A lane is one provider in one session. A few lanes of a provider run concurrently; the entries of a lane go one by one.
A failed delivery is retried with backoff and delays its own lane only. An entry that the provider rejects for good is
parked: the cursor passes it, the next close reports it, and a later retry is followed by one more close.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.clock_rules import is_waiting
from everthread.domain.errors import Fenced, NotFound, StoreError, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Lease
from everthread.log_context import Private, enter_log_scope
from everthread.memory.circuit_breaker import ProviderBreakers
from everthread.memory.delivery_results import OUTAGE, DeliveryResults, Limits, error_text
from everthread.memory.pending_entry import (
    HeavyEntry,
    PendingEntry,
    next_entry,
    obsolete_redeliveries,
)
from everthread.memory.provider_calls import Caller, CallTimeout
from everthread.ports.clock import Clock
from everthread.store.cursors import LaneCount, ProviderRow, Redelivery
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.journal")


class ProviderStatus(Struct, frozen=True):
    """The state of delivery to one provider."""

    name: str
    lanes: LaneCount
    breaker_open_until: float | None
    last_error: str | None
    last_error_at: float | None
    parked: tuple[Redelivery, ...]


class _Unread(Struct, frozen=True):
    """The next entry was not read: it is long, or reading it failed."""


_UNREAD = _Unread()


class DeliveryService:
    """Delivers the logs to the providers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        callers: Mapping[str, Caller],
        *,
        random: Callable[[], float],
        wake: Callable[[str], None] = lambda provider: None,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._callers = callers
        self._wake = wake
        self._limits = limits or Limits()
        self._results = DeliveryResults(clock, self._limits, random, lambda provider: callers[provider].has("forget"))
        self.breakers = ProviderBreakers()
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._hung: dict[tuple[str, str], tuple[Delivery, asyncio.Future[Any]]] = {}
        self._failures: Counter[str] = Counter()
        """Failures of unknown kind by delivery key."""

    @property
    def receivers(self) -> tuple[str, ...]:
        """The providers that get the logs."""
        return tuple(name for name, caller in self._callers.items() if caller.receives_log)

    async def register(self) -> None:
        """Register the providers. A new one starts at the end of every log."""
        names = self.receivers

        def register(uow: UnitOfWork) -> None:
            for name in names:
                uow.cursors.register(name)

        await self._store.write(register)

    async def drain(self, provider: str, lease: Lease) -> float | None:
        """Start every due lane that may run, without waiting for a provider. Returns when the next one is due."""
        now = self._clock.now()
        if (open_until := self.breakers.open_until(provider, now)) is not None:
            return open_until
        row, end = await self._store.read_inline(lambda uow: (uow.cursors.provider(provider), uow.log.end()))
        if row is None:
            return None
        # New log entries are discovered after the outage, so that no turn pays for a provider that is down.
        self.breakers.update([row])
        if (open_until := self.breakers.open_until(provider, now)) is not None:
            return open_until
        if end > row.scanned_pos:
            await self._discover(provider, lease, now)
        running = [session for name, session in self._running if name == provider]
        # After an outage one lane tests whether the provider is back.
        allowed = 1 if row.failures >= self._limits.breaker_failures else self._limits.lanes_max
        due = await self._store.read_inline(
            lambda uow: uow.cursors.due_sessions(provider, now, self._limits.lanes_max + len(running))
        )
        startable = [session for session in due if session not in running]
        for session in startable[: max(allowed - len(running), 0)]:
            self._start(provider, session, self._run_lane(provider, session, lease))
        return await self._store.read_inline(lambda uow: uow.cursors.next_due(provider, now))

    async def idle(self) -> None:
        """Wait until no lane is running in this process."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    async def stop(self) -> None:
        """Cancel the running deliveries; the next process repeats them."""
        tasks = set(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def retry(self, provider: str, session_id: str | None = None) -> int:
        """Retry parked entries. Returns their number."""
        now = self._clock.now()

        def retry(uow: UnitOfWork) -> int:
            check_provider(uow, provider)
            parked = [row for row in uow.cursors.redeliveries(provider, session_id) if row.due_at is None]
            for row in parked:
                uow.cursors.add_redelivery(replace(row, due_at=now, attempts=0))
            return len(parked)

        return await self._write_and_wake(provider, retry)

    async def replay(self, provider: str, session_id: str | None = None) -> int:
        """Deliver one log or all logs from the start under a new replay number. Returns the number of sessions."""
        now = self._clock.now()

        def replay(uow: UnitOfWork) -> int:
            check_provider(uow, provider)
            if session_id is not None and uow.sessions.get(session_id) is None:
                raise NotFound(f"there is no session {session_id!r}")
            return uow.cursors.restart(provider, session_id, now)

        return await self._write_and_wake(provider, replay)

    async def start_from_beginning(self, provider: str, session_ids: Sequence[str]) -> int:
        """Set the cursors for a backfill of these sessions (see `Backfill.copy`). Returns the number of sessions."""
        now = self._clock.now()
        return await self._write_and_wake(
            provider, lambda uow: sum(uow.cursors.copy(provider, session_id, now) for session_id in session_ids)
        )

    async def status(self) -> tuple[ProviderStatus, ...]:
        """Return the state of every provider that was ever configured."""
        now = self._clock.now()
        return await self._store.read(lambda uow: tuple(_status(uow, row, now) for row in uow.cursors.providers()))

    async def _write_and_wake(self, provider: str, work: Callable[[UnitOfWork], int]) -> int:
        count = await self._store.write(work)
        self._wake(provider)
        return count

    async def _discover(self, provider: str, lease: Lease, now: float) -> None:
        def discover(uow: UnitOfWork) -> bool:
            uow.leases.check(lease)
            return uow.cursors.discover(provider, now, self._limits.discover_at_once)

        while await self._store.write(discover):
            pass

    def _start(self, provider: str, session: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running[provider, session] = task

        def finished(task: asyncio.Task[None]) -> None:
            del self._running[provider, session]
            if not task.cancelled():
                self._wake(provider)

        task.add_done_callback(finished)

    async def _run_lane(self, provider: str, session: str, lease: Lease) -> None:
        """Deliver the entries of one lane until it is empty, fails or reaches `entries_per_run`."""
        # For the whole task, which serves this lane only.
        enter_log_scope(session=session)
        try:
            pending = await self._next(provider, session, lease)
            for _ in range(self._limits.entries_per_run):
                if pending is None:
                    return
                error = await self._attempt(pending)
                pending = await self._record(pending, error, lease)
        except Fenced as error:
            log.info("%s: %s", provider, error)
        except StoreError as error:
            log.warning("%s: %s", provider, error)
        except Exception as error:
            log.exception("%s: the lane of a session can't be read", provider)
            await self._postpone_lane(provider, session, lease, error)

    async def _postpone_lane(self, provider: str, session: str, lease: Lease, error: Exception) -> None:
        """Retry a lane that can't be read after the longest backoff, and report it as an incident."""

        def postpone(uow: UnitOfWork) -> None:
            uow.leases.check(lease)
            now = self._clock.now()
            cursor = uow.cursors.get(provider, session)
            later, why = now + self._limits.backoff_s_max, error_text(error)
            if cursor is not None:
                uow.cursors.save(replace(cursor, due_at=later, error=why))
            for row in uow.cursors.redeliveries(provider, session):
                if row.due_at is not None:
                    uow.cursors.add_redelivery(replace(row, due_at=later, error=why))
            uow.incidents.add(Incident(now, f"memory:{provider}", session, f"can't be read: {why}"))

        try:
            await self._store.write(postpone)
        except (Fenced, StoreError) as problem:
            log.warning("%s: %s", provider, problem)

    async def _next(self, provider: str, session: str, lease: Lease) -> PendingEntry | None:
        """Return the lane's next entry; mark a lane without one as idle."""
        now = self._clock.now()

        def read(uow: UnitOfWork, *, only_light: bool = False) -> PendingEntry | None:
            # A process that could not renew its lease must not deliver beside the new holder.
            uow.leases.check(lease)
            return next_entry(uow, provider, session, now, only_light=only_light)

        try:
            pending = await self._store.read_inline(lambda uow: read(uow, only_light=True))
        except HeavyEntry:
            pending = await self._store.read(read)
        if pending is None:

            def rest(uow: UnitOfWork) -> None:
                # Both reads use the same time: a lane that falls due between them must not count as empty.
                now = self._clock.now()
                uow.leases.check(lease)
                if next_entry(uow, provider, session, now) is None:
                    _mark_idle(uow, provider, session, now)

            await self._store.write(rest)
        return pending

    async def _attempt(self, pending: PendingEntry) -> BaseException | None:
        """Deliver once and return the error, if any. Two attempts of an entry never overlap."""
        lane = (pending.cursor.provider, pending.cursor.session_id)
        caller = self._callers[pending.cursor.provider]
        hung = self._hung.get(lane)
        if hung is not None:
            delivery, call = hung
            if not call.done():
                return Unavailable(caller.name, "an earlier attempt has not returned yet")
            del self._hung[lane]
            if delivery.key == pending.delivery.key and not call.cancelled() and call.exception() is None:
                return None
        try:
            await caller.ready()
            await caller.deliver(pending.event, pending.delivery, timeout_s=self._limits.attempt_s_max)
        except CallTimeout as error:
            self._hung[lane] = (pending.delivery, error.pending)
            return error
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; it is recorded, shown and retried
            return error
        return None

    async def _record(self, pending: PendingEntry, error: BaseException | None, lease: Lease) -> PendingEntry | None:
        """Record the result. Returns the lane's next entry, or None if there is none or the lane must wait."""
        provider, session = pending.cursor.provider, pending.cursor.session_id
        given_up = error is not None and self._is_given_up(pending, error)
        if error is None or given_up:
            self._failures.pop(pending.delivery.key, None)
        if error is not None:
            log.warning("%s: entry %s: %s", provider, pending.delivery.key, Private(error))

        def record(uow: UnitOfWork) -> PendingEntry | _Unread | None:
            uow.leases.check(lease)
            if not self._results.record(uow, pending, error, given_up=given_up):
                return None
            now = self._clock.now()
            try:
                # Reading the next entry here is cheap, but a long transcript must not delay other commits.
                following = next_entry(uow, provider, session, now, only_light=True)
                if following is None:
                    _mark_idle(uow, provider, session, now)
            except Exception:  # noqa: BLE001 - the recorded result must stay, whatever comes next
                return _UNREAD
            return following

        following = await self._store.write(record)
        if error is None:
            self.breakers.close(provider)
        return await self._next(provider, session, lease) if isinstance(following, _Unread) else following

    def _is_given_up(self, pending: PendingEntry, error: BaseException) -> bool:
        """Count a failure of unknown kind. Returns True after `attempts_max` of them; outages do not count."""
        if isinstance(error, OUTAGE):
            return False
        self._failures[pending.delivery.key] += 1
        return self._failures[pending.delivery.key] >= self._limits.attempts_max


def check_provider(uow: UnitOfWork, provider: str) -> None:
    """Raise `NotFound` for a provider that was never configured."""
    if uow.cursors.provider(provider) is None:
        names = ", ".join(row.name for row in uow.cursors.providers()) or "none so far"
        raise NotFound(f"there is no provider {provider!r}; known: {names}")


def _mark_idle(uow: UnitOfWork, provider: str, session_id: str, now: float) -> None:
    """Move the cursor of a lane without a next entry to the end of its log."""
    cursor, session = uow.cursors.get(provider, session_id), uow.sessions.get(session_id)
    if cursor is None or session is None:
        return
    if cursor.due_at is not None and not is_waiting(cursor.due_at, now):
        uow.cursors.save(replace(cursor, seq=session.log_seq, due_at=None))
    for row in obsolete_redeliveries(uow, cursor, session):
        uow.cursors.drop_redelivery(row)


def _status(uow: UnitOfWork, row: ProviderRow, now: float) -> ProviderStatus:
    return ProviderStatus(
        row.name,
        uow.cursors.count(row.name),
        row.open_until if is_waiting(row.open_until, now) else None,
        row.last_error,
        row.last_error_at,
        tuple(parked for parked in uow.cursors.redeliveries(row.name) if parked.due_at is None),
    )
