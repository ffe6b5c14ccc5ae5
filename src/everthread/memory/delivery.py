"""Moves each provider's cursors along the sessions' logs: in order per session, at least once, never all at once.

A lane is one provider in one session. Lanes of a provider run side by side, up to a few; a lane's entries go one by
one. An entry that can't be delivered now waits with back-off and holds up its own lane only. What the provider rejects
for good is parked: the cursor passes it, the next close says so, and a later retry is followed by one more close.

What a lane delivers next, read from the store: nothing here changes anything.

What is written down of a delivery: that it has arrived, that it is tried again, or that it is parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import Fenced, NotFound, Rejected, StartOver, StoreError, Unavailable
from everthread.domain.events import (
    Delivery,
    EntryKind,
    Event,
    ForgetScope,
    Forgotten,
    LogEntry,
    NoteWritten,
    SessionRewound,
    TurnCommitted,
)
from everthread.domain.model import FORGOTTEN, Lease, Session, TurnStatus
from everthread.memory.circuit_breaker import Breakers
from everthread.memory.provider_calls import Caller, Hung
from everthread.ports.clock import Clock
from everthread.store.cursors import Cursor, LaneCount, ProviderRow, Redelivery, ToCopy
from everthread.store.leases import Incident
from everthread.store.unit_of_work import Store, UnitOfWork

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


class DeliveryService:
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
        self._outcomes = DeliveryResults(clock, self._limits, random, lambda provider: callers[provider].has("forget"))
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
        row, end, too_late = await self._store.read_inline(
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
        due = await self._store.read_inline(
            lambda uow: uow.cursors.due_sessions(provider, now, self._limits.lanes_max + len(going))
        )
        startable = [session for session in due if session not in going]
        for session in startable[: max(free, 0)]:
            self._start(provider, session, self._carry(provider, session, lease))
        return await self._store.read_inline(lambda uow: uow.cursors.next_due(provider, now))

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
            uow.leases.check(lease)
            return uow.cursors.discover(provider, now, self._limits.discover_at_once)

        while await self._store.write(discover):
            pass

    async def _bring_forward(self, provider: str, lease: Lease) -> None:
        """Nothing is ever told to wait this long: the clock was put back since, and would have to catch up first."""

        def bring_forward(uow: UnitOfWork) -> None:
            uow.leases.check(lease)
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
            uow.leases.check(lease)
            now = self._clock.now()
            cursor = uow.cursors.get(provider, session)
            later, why = now + self._limits.backoff_s_max, said(error)
            if cursor is not None:
                uow.cursors.save(replace(cursor, due_at=later, error=why))
            for row in uow.cursors.redeliveries(provider, session):
                if row.due_at is not None:
                    uow.cursors.add_redelivery(replace(row, due_at=later, error=why))
            uow.leases.add_incident(Incident(now, f"memory:{provider}", session, f"can't be read: {why}"))

        try:
            await self._store.write(set_apart)
        except (Fenced, StoreError) as problem:
            log.warning("%s: %s", provider, problem)

    async def _look(self, provider: str, session: str, lease: Lease) -> PendingEntry | None:
        """The lane's next letter; a lane that has none is put to rest."""
        now = self._clock.now()

        def look(uow: UnitOfWork, *, only_light: bool = False) -> PendingEntry | None:
            # Whoever could not renew its lease for a while would else deliver beside the one who has it now.
            uow.leases.check(lease)
            return next_letter(uow, provider, session, now, only_light=only_light)

        try:
            letter = await self._store.read_inline(lambda uow: look(uow, only_light=True))
        except Heavy:
            letter = await self._store.read(look)
        if letter is None:

            def rest(uow: UnitOfWork) -> None:
                # One instant for both questions: a lane that falls due between them must not be taken for an empty one.
                now = self._clock.now()
                uow.leases.check(lease)
                if next_letter(uow, provider, session, now) is None:
                    _put_to_rest(uow, provider, session, now)

            await self._store.write(rest)
        return letter

    async def _attempt(self, letter: PendingEntry) -> BaseException | None:
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

    async def _record(self, letter: PendingEntry, error: BaseException | None, lease: Lease) -> PendingEntry | None:
        """Write down how it went; the lane's next letter, or None if it has none or may not go on."""
        provider, session = letter.cursor.provider, letter.cursor.session_id
        given_up = error is not None and self._given_up(letter, error)
        if error is None or given_up:
            self._puzzling.pop(letter.delivery.key, None)
        if error is not None:
            log.warning("%s: entry %s: %s", provider, letter.delivery.key, said(error))

        def record(uow: UnitOfWork) -> PendingEntry | _Unread | None:
            uow.leases.check(lease)
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

    def _given_up(self, letter: PendingEntry, error: BaseException) -> bool:
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


class PendingEntry(Struct, frozen=True):
    """One entry on its way to one provider."""

    cursor: Cursor
    entry: LogEntry
    event: Event
    delivery: Delivery
    redelivery: Redelivery | None = None

    is_left_out: bool = False
    """The past is told as it stands now, and this is no part of it any more."""

    @property
    def is_empty(self) -> bool:
        """Nothing to tell: left out, or a note that was forgotten before it was told."""
        return self.is_left_out or (isinstance(self.event, NoteWritten) and self.event.note.content == FORGOTTEN)


class Heavy(Exception):
    """The next letter is long: to be read where nobody waits."""


def next_letter(
    uow: UnitOfWork, provider: str, session_id: str, now: float, *, only_light: bool = False
) -> PendingEntry | None:
    """First what is to be delivered once more, then the log in order."""
    cursor, session = uow.cursors.get(provider, session_id), uow.sessions.get(session_id)
    if cursor is None or session is None:
        return None
    first = first_told(session)
    for row in uow.cursors.redeliveries(provider, session_id):
        due = row.due_at is not None and row.due_at <= now and row.seq >= first
        entry = uow.log.entry(session_id, row.seq) if due else None
        if entry is not None and not (letter := _letter(uow, cursor, entry, row, only_light)).is_empty:
            return letter
    if cursor.due_at is None or cursor.due_at > now:
        return None
    entry = uow.log.after(session_id, max(cursor.seq, first - 1))
    while entry is not None:
        letter = _letter(uow, cursor, entry, None, only_light)
        if not letter.is_empty:
            return letter
        entry = uow.log.after(session_id, entry.seq)
    return None


def first_told(session: Session) -> int:
    """The first entry of a log that is still told: what came before a forgetting is not, also when it is replayed."""
    return session.forgotten_seq or 0


def pointless(uow: UnitOfWork, cursor: Cursor, session: Session) -> tuple[Redelivery, ...]:
    """Redeliveries that will never be made, because what they tell was forgotten."""
    return tuple(
        row
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id)
        if row.seq < first_told(session)
        or (entry := uow.log.entry(session.id, row.seq)) is None
        or _letter(uow, cursor, entry, row).is_empty
    )


def _letter(
    uow: UnitOfWork, cursor: Cursor, entry: LogEntry, redelivery: Redelivery | None, only_light: bool = False
) -> PendingEntry:
    if only_light and not uow.log.is_light(entry):
        raise Heavy
    source = redelivery or cursor
    key = f"{cursor.session_id}:{entry.seq}:{cursor.provider}:{source.replay}"
    delivery = Delivery(key, entry.seq, source.attempts + 1, source.replay)
    missing = uow.cursors.parked(cursor.provider, cursor.session_id) if entry.kind is EntryKind.CLOSE else ()
    copied = entry.seq <= cursor.copy_to
    event = uow.log.event(entry, missing, as_of_now=copied)
    left_out = copied and _is_left_out(uow, entry, event, once_more=redelivery is not None)
    return PendingEntry(cursor, entry, event, delivery, redelivery, left_out)


def _is_left_out(uow: UnitOfWork, entry: LogEntry, event: Event, *, once_more: bool) -> bool:
    """Whether a copy passes over an entry: turns that were taken back, the taking back, and what was forgotten.

    To tell anew that a person is to be forgotten would lose what is copied of them. One that the provider had rejected
    is still owed to it.
    """
    match event:
        case TurnCommitted(turn=turn):
            taken_back = uow.log.is_taken_back(entry.ref.session_id, turn.number)
            return taken_back or turn.status is TurnStatus.HIDDEN
        case SessionRewound():
            return True
        case Forgotten():
            return not once_more
        case _:
            return False


ERROR_CHARS_MAX = 500
OUTAGE = (Unavailable, TimeoutError, ConnectionError)
"""What a provider can do nothing about. Older ones don't put it in our words."""


class Limits(Struct, frozen=True):
    lanes_max: int = 4
    attempt_s_max: float = 60.0
    attempts_max: int = 8
    """Failures of unknown kind before an entry is parked. An outage never parks anything."""
    backoff_s: float = 1.0
    backoff_s_max: float = 300.0
    breaker_failures: int = 5
    breaker_s: float = 30.0
    entries_per_run: int = 100
    discover_at_once: int = 1000

    @property
    def wait_s_max(self) -> float:
        """Nothing that waits is due later than this from now."""
        return max(self.backoff_s_max, self.breaker_s)


class DeliveryResults:
    def __init__(
        self, clock: Clock, limits: Limits, random: Callable[[], float], can_forget: Callable[[str], bool]
    ) -> None:
        """`can_forget`: whether a provider of that name does so when it is told to."""
        self._clock = clock
        self._limits = limits
        self._random = random
        self._can_forget = can_forget

    def write_down(self, uow: UnitOfWork, letter: PendingEntry, error: BaseException | None, *, given_up: bool) -> bool:
        """Whether the lane may go on."""
        cursor = uow.cursors.get(letter.cursor.provider, letter.cursor.session_id)
        if cursor is None or (cursor.seq, cursor.replay) != (letter.cursor.seq, letter.cursor.replay):
            # The lane was set back meanwhile: this delivery belongs to its past.
            return True
        if error is None:
            self._delivered(uow, letter)
        elif isinstance(error, Rejected) or given_up:
            self._park(uow, letter, _why(uow, letter, error))
        else:
            self._postpone(uow, letter, error, _why(uow, letter, error))
            if isinstance(error, StartOver):
                self._go_back(uow, letter, error.seq)
            return False
        return True

    def _delivered(self, uow: UnitOfWork, letter: PendingEntry) -> None:
        cursor = letter.cursor
        provider = uow.cursors.provider(cursor.provider)
        if provider is not None and provider.failures:
            uow.cursors.save_provider(replace(provider, failures=0, open_until=0.0))
        if letter.redelivery is None:
            uow.cursors.save(replace(cursor, seq=letter.entry.seq, attempts=0, error=None, due_at=self._clock.now()))
        else:
            uow.cursors.drop_redelivery(letter.redelivery)
            if letter.entry.kind is not EntryKind.CLOSE:
                self._close_once_more(uow, letter)
        if isinstance(letter.event, Forgotten):
            uow.erasure.told(cursor.session_id, letter.entry.seq)
            if letter.event.scope is ForgetScope.OWNER and self._can_forget(cursor.provider):
                self._tell_what_came_after(uow, letter)

    def _tell_what_came_after(self, uow: UnitOfWork, letter: PendingEntry) -> None:
        """The provider has let go of all that it had of a person: also of what they said since, in lanes that did not
        wait for this one. So that is told again.
        """
        cursor, now = letter.cursor, self._clock.now()
        uow.cursors.tell_again(cursor.provider, letter.entry.ref.owner, now)
        if letter.redelivery is None:
            return
        # It was behind its place in its own lane: from there it is told once more, and what follows after it.
        replay = uow.cursors.new_replay(cursor.provider, cursor.session_id)
        uow.cursors.save(replace(cursor, seq=letter.entry.seq - 1, replay=replay, attempts=0, error=None, due_at=now))
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id):
            uow.cursors.drop_redelivery(row)

    def _close_once_more(self, uow: UnitOfWork, letter: PendingEntry) -> None:
        """What was parked has arrived after all: the session's last close, if it came before, is owed again."""
        cursor = letter.cursor
        # The close that is next in the log counts too: it may have arrived without our knowing.
        close = uow.log.last_close(cursor.session_id, cursor.seq + 1)
        if close is None or close.seq < letter.entry.seq:
            return
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id):
            if row.seq == close.seq and row.due_at is not None and row.replay != cursor.replay:
                # It may have arrived before this entry: under its old key it would have no effect any more. One that
                # waits under the log's own key stays, for nobody to miss.
                uow.cursors.drop_redelivery(row)
        replay = uow.cursors.new_replay(cursor.provider, cursor.session_id)
        due_at = self._clock.now()
        uow.cursors.add_redelivery(Redelivery(cursor.provider, cursor.session_id, close.seq, replay, "", due_at=due_at))

    def _park(self, uow: UnitOfWork, letter: PendingEntry, why: str) -> None:
        cursor, now = letter.cursor, self._clock.now()
        replay = letter.delivery.replay
        uow.cursors.add_redelivery(Redelivery(cursor.provider, cursor.session_id, letter.entry.seq, replay, why))
        if letter.redelivery is None:
            uow.cursors.save(replace(cursor, seq=letter.entry.seq, attempts=0, error=why, due_at=now))
        self._blame(uow, letter, why, f"parked: {why}")

    def _postpone(self, uow: UnitOfWork, letter: PendingEntry, error: BaseException, why: str) -> None:
        now, attempts = self._clock.now(), letter.delivery.attempt
        wait_s = self._backoff_s(attempts)
        if isinstance(error, Unavailable) and error.retry_after_s is not None:
            wait_s = min(max(wait_s, error.retry_after_s), self._limits.backoff_s_max)
        if letter.redelivery is not None:
            again = replace(letter.redelivery, attempts=attempts, due_at=now + wait_s, error=why)
            uow.cursors.add_redelivery(again)
        else:
            uow.cursors.save(replace(letter.cursor, attempts=attempts, error=why, due_at=now + wait_s))
        row = self._blame(uow, letter, why, why if attempts == 1 else "")
        if row is not None and isinstance(error, OUTAGE):
            row = replace(row, failures=row.failures + 1)
            if row.failures >= self._limits.breaker_failures:
                row = replace(row, open_until=now + self._limits.breaker_s)
            uow.cursors.save_provider(row)

    def _go_back(self, uow: UnitOfWork, letter: PendingEntry, seq: int) -> None:
        """What the provider had acknowledged is lost: when the lane is due, it is told again under the same keys."""
        cursor = uow.cursors.get(letter.cursor.provider, letter.cursor.session_id)
        if cursor is not None and 0 < seq <= cursor.seq:
            uow.cursors.save(replace(cursor, seq=seq - 1, due_at=cursor.due_at or self._clock.now()))

    def _blame(self, uow: UnitOfWork, letter: PendingEntry, why: str, incident: str) -> ProviderRow | None:
        """Keep the provider's failure where people see it."""
        name, now = letter.cursor.provider, self._clock.now()
        if incident:
            uow.leases.add_incident(Incident(now, f"memory:{name}", letter.cursor.session_id, incident))
        row = uow.cursors.provider(name)
        if row is not None:
            row = replace(row, last_error=why, last_error_at=now)
            uow.cursors.save_provider(row)
        return row

    def _backoff_s(self, attempts: int) -> float:
        full = min(self._limits.backoff_s * 2 ** min(attempts - 1, 20), self._limits.backoff_s_max)
        return full * (0.5 + self._random() / 2)


def said(error: BaseException) -> str:
    """What an error says, whatever it is."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error that can't even say what it is
        text = ""
    return (text or type(error).__name__)[:ERROR_CHARS_MAX]


def _why(uow: UnitOfWork, letter: PendingEntry, error: BaseException) -> str:
    """What to write down of an error. What was forgotten meanwhile may stand in it word for word."""
    session = uow.sessions.get(letter.cursor.session_id)
    forgotten = session is not None and letter.entry.seq < first_told(session)
    return type(error).__name__ if forgotten else said(error)
