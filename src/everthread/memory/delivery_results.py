"""Record the result of a delivery: move the cursor, retry later, or park the entry."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.backoff import Backoff
from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.domain.errors import Rejected, StartOver, Unavailable
from everthread.domain.events import EntryKind, ForgetScope, Forgotten
from everthread.memory.pending_entry import PendingEntry, first_deliverable
from everthread.ports.clock import Clock
from everthread.store.cursors import ProviderRow, Redelivery
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork

ERROR_CHARS_MAX = 500
OUTAGE = (Unavailable, TimeoutError, ConnectionError)
"""Errors that say nothing about the entry. Older providers raise the built-in ones."""


class Limits(Struct, frozen=True):
    """Limits of delivery to one provider. No wait is longer than `clock_rules.AHEAD_S_MAX`."""

    lanes_max: int = 4
    attempt_s_max: float = 60.0
    attempts_max: int = 8
    """Failures of unknown kind before an entry is parked. An outage parks nothing."""
    backoff_s: float = 1.0
    backoff_s_max: float = AHEAD_S_MAX
    breaker_failures: int = 5
    breaker_s: float = 30.0
    entries_per_run: int = 100
    discover_at_once: int = 1000


class DeliveryResults:
    """Records the results of deliveries: delivered, postponed or parked."""

    def __init__(
        self, clock: Clock, limits: Limits, random: Callable[[], float], can_forget: Callable[[str], bool]
    ) -> None:
        """`can_forget` tells if the provider of a name implements `forget`."""
        self._clock = clock
        self._limits = limits
        self._random = random
        self._can_forget = can_forget

    def record(self, uow: UnitOfWork, pending: PendingEntry, error: BaseException | None, *, given_up: bool) -> bool:
        """Record one result. Returns True if the lane may go on."""
        cursor = uow.cursors.get(pending.cursor.provider, pending.cursor.session_id)
        if cursor is None or (cursor.seq, cursor.replay) != (pending.cursor.seq, pending.cursor.replay):
            # The cursor was set back meanwhile; this delivery does not count.
            return True
        if error is None:
            self._delivered(uow, pending)
        elif isinstance(error, Rejected) or given_up:
            self._park(uow, pending, _reason(uow, pending, error))
        else:
            self._postpone(uow, pending, error, _reason(uow, pending, error))
            if isinstance(error, StartOver):
                self._go_back(uow, pending, error.seq)
            return False
        return True

    def _delivered(self, uow: UnitOfWork, pending: PendingEntry) -> None:
        cursor = pending.cursor
        provider = uow.cursors.provider(cursor.provider)
        if provider is not None and provider.failures:
            uow.cursors.save_provider(replace(provider, failures=0, open_until=0.0))
        if pending.redelivery is None:
            uow.cursors.save(replace(cursor, seq=pending.entry.seq, attempts=0, error=None, due_at=self._clock.now()))
        else:
            uow.cursors.drop_redelivery(pending.redelivery)
            if pending.entry.kind is not EntryKind.CLOSE:
                self._repeat_close(uow, pending)
        if isinstance(pending.event, Forgotten):
            uow.erasure.remove_delivered_request_text(cursor.session_id, pending.entry.seq)
            if pending.event.scope is ForgetScope.OWNER and self._can_forget(cursor.provider):
                self._repeat_after_forget(uow, pending)

    def _repeat_after_forget(self, uow: UnitOfWork, pending: PendingEntry) -> None:
        """Deliver again what came after a forget of a person: the provider erased it too if another lane was faster."""
        cursor, now = pending.cursor, self._clock.now()
        uow.cursors.restart_owner(cursor.provider, pending.entry.ref.owner, now)
        if pending.redelivery is None:
            return
        # The forget was delivered late in its own lane: repeat the lane from there.
        replay = uow.cursors.new_replay(cursor.provider, cursor.session_id)
        uow.cursors.save(replace(cursor, seq=pending.entry.seq - 1, replay=replay, attempts=0, error=None, due_at=now))
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id):
            uow.cursors.drop_redelivery(row)

    def _repeat_close(self, uow: UnitOfWork, pending: PendingEntry) -> None:
        """After a parked entry was delivered, deliver the session's last close again if it came before."""
        cursor = pending.cursor
        # Includes the close that is next in the log: it may have been delivered without a recorded result.
        close = uow.log.last_close(cursor.session_id, cursor.seq + 1)
        if close is None or close.seq < pending.entry.seq:
            return
        for row in uow.cursors.redeliveries(cursor.provider, cursor.session_id):
            if row.seq == close.seq and row.due_at is not None and row.replay != cursor.replay:
                # It may have been delivered before this entry, and would have no effect under its old key. A
                # redelivery under the log's own key stays.
                uow.cursors.drop_redelivery(row)
        replay = uow.cursors.new_replay(cursor.provider, cursor.session_id)
        due_at = self._clock.now()
        uow.cursors.add_redelivery(Redelivery(cursor.provider, cursor.session_id, close.seq, replay, "", due_at=due_at))

    def _park(self, uow: UnitOfWork, pending: PendingEntry, why: str) -> None:
        cursor, now = pending.cursor, self._clock.now()
        replay = pending.delivery.replay
        uow.cursors.add_redelivery(Redelivery(cursor.provider, cursor.session_id, pending.entry.seq, replay, why))
        if pending.redelivery is None:
            uow.cursors.save(replace(cursor, seq=pending.entry.seq, attempts=0, error=why, due_at=now))
        self._report(uow, pending, why, f"parked: {why}")

    def _postpone(self, uow: UnitOfWork, pending: PendingEntry, error: BaseException, why: str) -> None:
        now, attempts, limits = self._clock.now(), pending.delivery.attempt, self._limits
        wait_s = Backoff(limits.backoff_s, limits.backoff_s_max).jittered_s(attempts, self._random())
        if isinstance(error, Unavailable) and error.retry_after_s is not None:
            wait_s = min(max(wait_s, error.retry_after_s), limits.backoff_s_max)
        if pending.redelivery is not None:
            again = replace(pending.redelivery, attempts=attempts, due_at=now + wait_s, error=why)
            uow.cursors.add_redelivery(again)
        else:
            uow.cursors.save(replace(pending.cursor, attempts=attempts, error=why, due_at=now + wait_s))
        row = self._report(uow, pending, why, why if attempts == 1 else "")
        if row is not None and isinstance(error, OUTAGE):
            breaker = CircuitBreaker(row.failures, row.open_until).after_failure(
                now, limits.breaker_s, failures_max=limits.breaker_failures
            )
            uow.cursors.save_provider(replace(row, failures=breaker.failures, open_until=breaker.open_until))

    def _go_back(self, uow: UnitOfWork, pending: PendingEntry, seq: int) -> None:
        """Set the cursor back to entries that the provider acknowledged and lost; they keep their delivery keys."""
        cursor = uow.cursors.get(pending.cursor.provider, pending.cursor.session_id)
        if cursor is not None and 0 < seq <= cursor.seq:
            uow.cursors.save(replace(cursor, seq=seq - 1, due_at=cursor.due_at or self._clock.now()))

    def _report(self, uow: UnitOfWork, pending: PendingEntry, why: str, incident: str) -> ProviderRow | None:
        """Store the provider's last error, and an incident unless it is empty."""
        name, now = pending.cursor.provider, self._clock.now()
        if incident:
            uow.incidents.add(Incident(now, f"memory:{name}", pending.cursor.session_id, incident))
        row = uow.cursors.provider(name)
        if row is not None:
            row = replace(row, last_error=why, last_error_at=now)
            uow.cursors.save_provider(row)
        return row


def error_text(error: BaseException) -> str:
    """Return the message of any error, or its type if it has none."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - `__str__` of a provider's error may fail
        text = ""
    return (text or type(error).__name__)[:ERROR_CHARS_MAX]


def _reason(uow: UnitOfWork, pending: PendingEntry, error: BaseException) -> str:
    """Return the error text to store; only the type if the entry was forgotten, because the text may quote it."""
    session = uow.sessions.get(pending.cursor.session_id)
    forgotten = session is not None and pending.entry.seq < first_deliverable(session)
    if forgotten:
        return type(error).__name__
    return uow.erasure.erase_facts_from_error(error_text(error), pending.cursor.session_id)
