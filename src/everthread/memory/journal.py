"""Moves each provider's cursors along the sessions' logs: in order per session, at least once, never all at once.

A lane is one provider in one session. Lanes of a provider run side by side, up to a few; a lane's entries go one by
one. An entry that can't be delivered now waits with back-off and holds up its own lane only. What the provider rejects
for good is parked: the cursor passes it, the next close says so, and a later retry is followed by one more close.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import Fenced, NotFound, StoreError, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import Lease
from everthread.memory.breakers import Breakers
from everthread.memory.calling import Caller, Hung
from everthread.memory.letters import Heavy, Letter, next_letter, pointless
from everthread.memory.outcomes import OUTAGE, Limits, Outcomes, said
from everthread.ports import Clock, Store
from everthread.ports.store import Incident, LaneCount, ProviderRow, Redelivery, ToCopy, UnitOfWork

log = logging.getLogger("everthread.journal")

COPY_AT_ONCE = 500


class ProviderStatus(Struct, frozen=True):
    name: str
    lanes: LaneCount
    breaker_open_until: float | None
    last_error: str | None
    last_error_at: float | None
    parked: tuple[Redelivery, ...]


class _Unread(Struct, frozen=True):
    """The next letter is not read yet: it is long, or can't be read."""


_UNREAD = _Unread()


class Journal:
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
        self._outcomes = Outcomes(clock, self._limits, random, lambda provider: callers[provider].has("forget"))
        self.breakers = Breakers(self._limits.wait_s_max)
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._hung: dict[tuple[str, str], tuple[Delivery, asyncio.Future[Any]]] = {}
        self._puzzling: Counter[str] = Counter()

    @property
    def told(self) -> tuple[str, ...]:
        """The providers that the logs are delivered to."""
        return tuple(name for name, caller in self._callers.items() if caller.is_told)

    async def register(self) -> None:
        """A provider that was never here before starts at the logs' ends. One that hears nothing has no cursors."""
        names = self.told

        def register(uow: UnitOfWork) -> None:
            for name in names:
                uow.cursors.register(name)

        await self._store.write(register)

    async def drain(self, provider: str, lease: Lease) -> float | None:
        """Set every lane going that is due and may run; when the next one is due. Never waits for a provider."""
        now = self._clock.now()
        if (open_until := self.breakers.open_until(provider, now)) is not None:
            return open_until
        latest = now + self._limits.wait_s_max
        row, end, too_late = await self._store.peek(
            lambda uow: (uow.cursors.provider(provider), uow.log.end(), uow.cursors.next_due(provider, latest))
        )
        if row is None:
            return None
        if too_late is not None or row.open_until > latest:
            await self._bring_forward(provider, lease)
            return now
        # What is new meanwhile is looked through afterwards: no turn pays for a provider that is not there.
        if row.open_until > now:
            self.breakers.seen([row])
            return row.open_until
        if end > row.scanned_pos:
            await self._discover(provider, lease, now)
        going = [session for name, session in self._running if name == provider]
        free = self._lanes_allowed(row) - len(going)
        due = await self._store.peek(
            lambda uow: uow.cursors.due_sessions(provider, now, self._limits.lanes_max + len(going))
        )
        startable = [session for session in due if session not in going]
        for session in startable[: max(free, 0)]:
            self._start(provider, session, self._carry(provider, session, lease))
        return await self._store.peek(lambda uow: uow.cursors.next_due(provider, now))

    async def idle(self) -> None:
        """Wait until no lane is running here."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    async def stop(self) -> None:
        """Leave whatever is on its way; it will be delivered again by whoever comes next."""
        tasks = set(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def retry(self, provider: str, session_id: str | None = None) -> int:
        """Try parked entries again; how many."""
        now = self._clock.now()

        def retry(uow: UnitOfWork) -> int:
            _known(uow, provider)
            parked = [row for row in uow.cursors.redeliveries(provider, session_id) if row.due_at is None]
            for row in parked:
                uow.cursors.add_redelivery(replace(row, due_at=now, attempts=0))
            return len(parked)

        count = await self._store.write(retry)
        self._wake(provider)
        return count

    async def replay(self, provider: str, session_id: str | None = None) -> int:
        """Deliver a session's log, or every log, from its start under a new replay number; how many sessions."""
        now = self._clock.now()

        def replay(uow: UnitOfWork) -> int:
            _known(uow, provider)
            if session_id is not None and uow.sessions.get(session_id) is None:
                raise NotFound(f"there is no session {session_id!r}")
            return uow.cursors.set_back(provider, session_id, now)

        count = await self._store.write(replay)
        self._wake(provider)
        return count

    async def to_copy(self, provider: str, sessions: Collection[str] | None = None) -> tuple[ToCopy, ...]:
        """What the provider was not told from the beginning: of these sessions, or of all."""
        found: list[ToCopy] = []
        after = ""
        while True:

            def look(uow: UnitOfWork, after: str = after) -> tuple[ToCopy, ...]:
                _known(uow, provider)
                return uow.cursors.to_copy(provider, after, COPY_AT_ONCE)

            some = await self._store.read(look)
            found += [one for one in some if sessions is None or one.session_id in sessions]
            if len(some) < COPY_AT_ONCE:
                return tuple(found)
            after = some[-1].session_id

    async def copy(self, provider: str, wanted: Sequence[ToCopy]) -> int:
        """Have sessions told from their beginnings, as they stand now; how many of them.

        One that the provider was told of from its beginning is left alone, so that to ask twice does nothing more.
        One of which something waits for the provider is left for later.
        """
        now, count = self._clock.now(), 0
        for at in range(0, len(wanted), COPY_AT_ONCE):
            some = wanted[at : at + COPY_AT_ONCE]

            def copy(uow: UnitOfWork, some: Sequence[ToCopy] = some) -> int:
                return sum(uow.cursors.copy(provider, one.session_id, now) for one in some)

            count += await self._store.write(copy)
        self._wake(provider)
        return count

    async def copying(self, provider: str) -> tuple[int, int]:
        """Sessions and entries that are still to be told of the copies that were begun, whoever began them."""
        return await self._store.read(lambda uow: uow.cursors.copying(provider))

    async def status(self) -> tuple[ProviderStatus, ...]:
        now = self._clock.now()
        return await self._store.read(lambda uow: status_of(uow, now))

    def _lanes_allowed(self, row: ProviderRow) -> int:
        # After an outage one lane goes ahead to see whether the provider is back.
        return 1 if row.failures >= self._limits.breaker_failures else self._limits.lanes_max

    async def _discover(self, provider: str, lease: Lease, now: float) -> None:
        def discover(uow: UnitOfWork) -> bool:
            uow.lanes.check(lease)
            return uow.cursors.discover(provider, now, self._limits.discover_at_once)

        while await self._store.write(discover):
            pass

    async def _bring_forward(self, provider: str, lease: Lease) -> None:
        """Nothing is ever told to wait this long: the clock was put back since, and would have to catch up first."""

        def bring_forward(uow: UnitOfWork) -> None:
            uow.lanes.check(lease)
            now = self._clock.now()
            uow.cursors.bring_forward(provider, now, now + self._limits.wait_s_max)

        log.warning("%s: deliveries are due in a far future; the clock was put back, they are due now", provider)
        await self._store.write(bring_forward)

    def _start(self, provider: str, session: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running[provider, session] = task

        def finished(task: asyncio.Task[None]) -> None:
            del self._running[provider, session]
            if not task.cancelled():
                self._wake(provider)

        task.add_done_callback(finished)

    async def _carry(self, provider: str, session: str, lease: Lease) -> None:
        """Drain one lane until it is empty, fails or has had its share."""
        try:
            letter = await self._look(provider, session, lease)
            for _ in range(self._limits.entries_per_run):
                if letter is None:
                    return
                error = await self._attempt(letter)
                letter = await self._record(letter, error, lease)
        except Fenced as error:
            log.info("%s: %s", provider, error)
        except StoreError as error:
            log.warning("%s: %s", provider, error)
        except Exception as error:
            log.exception("%s: the lane of %s can't be read", provider, session)
            await self._set_apart(provider, session, lease, error)

    async def _set_apart(self, provider: str, session: str, lease: Lease, error: Exception) -> None:
        """Look at a broken lane again after a good while, and say so where people see it."""

        def set_apart(uow: UnitOfWork) -> None:
            uow.lanes.check(lease)
            now = self._clock.now()
            cursor = uow.cursors.get(provider, session)
            later, why = now + self._limits.backoff_s_max, said(error)
            if cursor is not None:
                uow.cursors.save(replace(cursor, due_at=later, error=why))
            for row in uow.cursors.redeliveries(provider, session):
                if row.due_at is not None:
                    uow.cursors.add_redelivery(replace(row, due_at=later, error=why))
            uow.lanes.add_incident(Incident(now, f"memory:{provider}", session, f"can't be read: {why}"))

        try:
            await self._store.write(set_apart)
        except (Fenced, StoreError) as problem:
            log.warning("%s: %s", provider, problem)

    async def _look(self, provider: str, session: str, lease: Lease) -> Letter | None:
        """The lane's next letter; a lane that has none is put to rest."""
        now = self._clock.now()

        def look(uow: UnitOfWork, *, only_light: bool = False) -> Letter | None:
            # Whoever could not renew its lease for a while would else deliver beside the one who has it now.
            uow.lanes.check(lease)
            return next_letter(uow, provider, session, now, only_light=only_light)

        try:
            letter = await self._store.peek(lambda uow: look(uow, only_light=True))
        except Heavy:
            letter = await self._store.read(look)
        if letter is None:

            def rest(uow: UnitOfWork) -> None:
                # One instant for both questions: a lane that falls due between them must not be taken for an empty one.
                now = self._clock.now()
                uow.lanes.check(lease)
                if next_letter(uow, provider, session, now) is None:
                    _put_to_rest(uow, provider, session, now)

            await self._store.write(rest)
        return letter

    async def _attempt(self, letter: Letter) -> BaseException | None:
        """Deliver once; the error, if it failed. Never two attempts of an entry at a time."""
        lane = (letter.cursor.provider, letter.cursor.session_id)
        caller = self._callers[letter.cursor.provider]
        hung = self._hung.get(lane)
        if hung is not None:
            delivery, pending = hung
            if not pending.done():
                return Unavailable(caller.name, "an earlier attempt has not come back yet")
            del self._hung[lane]
            if delivery.key == letter.delivery.key and not pending.cancelled() and pending.exception() is None:
                return None
        try:
            await caller.ready()
            await caller.deliver(letter.event, letter.delivery, timeout_s=self._limits.attempt_s_max)
        except Hung as error:
            self._hung[lane] = (letter.delivery, error.pending)
            return error
        except Exception as error:  # noqa: BLE001 - a provider may raise anything; it is recorded, shown and retried
            return error
        return None

    async def _record(self, letter: Letter, error: BaseException | None, lease: Lease) -> Letter | None:
        """Write down how it went; the lane's next letter, or None if it has none or may not go on."""
        provider, session = letter.cursor.provider, letter.cursor.session_id
        given_up = error is not None and self._given_up(letter, error)
        if error is None or given_up:
            self._puzzling.pop(letter.delivery.key, None)
        if error is not None:
            log.warning("%s: entry %s: %s", provider, letter.delivery.key, said(error))

        def record(uow: UnitOfWork) -> Letter | _Unread | None:
            uow.lanes.check(lease)
            if not self._outcomes.write_down(uow, letter, error, given_up=given_up):
                return None
            now = self._clock.now()
            try:
                # Here everything is at hand already; but a long transcript must not hold up anybody's commit.
                following = next_letter(uow, provider, session, now, only_light=True)
                if following is None:
                    _put_to_rest(uow, provider, session, now)
            except Exception:  # noqa: BLE001 - how it went stays written down, whatever comes next
                return _UNREAD
            return following

        found = await self._store.write(record)
        if error is None:
            self.breakers.end(provider)
        return await self._look(provider, session, lease) if isinstance(found, _Unread) else found

    def _given_up(self, letter: Letter, error: BaseException) -> bool:
        """Whether an entry has failed too often for reasons that time won't mend. Outages in between don't count."""
        if isinstance(error, OUTAGE):
            return False
        self._puzzling[letter.delivery.key] += 1
        return self._puzzling[letter.delivery.key] >= self._limits.attempts_max


def _put_to_rest(uow: UnitOfWork, provider: str, session_id: str, now: float) -> None:
    """For a lane that has no letter now."""
    cursor, session = uow.cursors.get(provider, session_id), uow.sessions.get(session_id)
    if cursor is None or session is None:
        return
    if cursor.due_at is not None and cursor.due_at <= now:
        uow.cursors.save(replace(cursor, seq=session.log_seq, due_at=None))
    for row in pointless(uow, cursor, session):
        uow.cursors.drop_redelivery(row)


def status_of(uow: UnitOfWork, now: float) -> tuple[ProviderStatus, ...]:
    """How every provider that was ever configured is doing."""
    return tuple(
        ProviderStatus(
            row.name,
            uow.cursors.count(row.name),
            row.open_until if row.open_until > now else None,
            row.last_error,
            row.last_error_at,
            tuple(parked for parked in uow.cursors.redeliveries(row.name) if parked.due_at is None),
        )
        for row in uow.cursors.providers()
    )


def _known(uow: UnitOfWork, provider: str) -> None:
    if uow.cursors.provider(provider) is None:
        names = ", ".join(row.name for row in uow.cursors.providers()) or "none so far"
        raise NotFound(f"there is no provider {provider!r}; known are: {names}")
