"""What is written down of a delivery: that it has arrived, that it is tried again, or that it is parked."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from everthread.domain.errors import Rejected, StartOver, Unavailable
from everthread.domain.events import EntryKind, ForgetScope, Forgotten
from everthread.memory.letters import Letter, first_told
from everthread.ports import Clock
from everthread.ports.store import Incident, ProviderRow, Redelivery, UnitOfWork

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


class Outcomes:
    def __init__(
        self, clock: Clock, limits: Limits, random: Callable[[], float], can_forget: Callable[[str], bool]
    ) -> None:
        """`can_forget`: whether a provider of that name does so when it is told to."""
        self._clock = clock
        self._limits = limits
        self._random = random
        self._can_forget = can_forget

    def write_down(self, uow: UnitOfWork, letter: Letter, error: BaseException | None, *, given_up: bool) -> bool:
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

    def _delivered(self, uow: UnitOfWork, letter: Letter) -> None:
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
            uow.forgetting.told(cursor.session_id, letter.entry.seq)
            if letter.event.scope is ForgetScope.OWNER and self._can_forget(cursor.provider):
                self._tell_what_came_after(uow, letter)

    def _tell_what_came_after(self, uow: UnitOfWork, letter: Letter) -> None:
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

    def _close_once_more(self, uow: UnitOfWork, letter: Letter) -> None:
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

    def _park(self, uow: UnitOfWork, letter: Letter, why: str) -> None:
        cursor, now = letter.cursor, self._clock.now()
        replay = letter.delivery.replay
        uow.cursors.add_redelivery(Redelivery(cursor.provider, cursor.session_id, letter.entry.seq, replay, why))
        if letter.redelivery is None:
            uow.cursors.save(replace(cursor, seq=letter.entry.seq, attempts=0, error=why, due_at=now))
        self._blame(uow, letter, why, f"parked: {why}")

    def _postpone(self, uow: UnitOfWork, letter: Letter, error: BaseException, why: str) -> None:
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

    def _go_back(self, uow: UnitOfWork, letter: Letter, seq: int) -> None:
        """What the provider had acknowledged is lost: when the lane is due, it is told again under the same keys."""
        cursor = uow.cursors.get(letter.cursor.provider, letter.cursor.session_id)
        if cursor is not None and 0 < seq <= cursor.seq:
            uow.cursors.save(replace(cursor, seq=seq - 1, due_at=cursor.due_at or self._clock.now()))

    def _blame(self, uow: UnitOfWork, letter: Letter, why: str, incident: str) -> ProviderRow | None:
        """Keep the provider's failure where people see it."""
        name, now = letter.cursor.provider, self._clock.now()
        if incident:
            uow.lanes.add_incident(Incident(now, f"memory:{name}", letter.cursor.session_id, incident))
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


def _why(uow: UnitOfWork, letter: Letter, error: BaseException) -> str:
    """What to write down of an error. What was forgotten meanwhile may stand in it word for word."""
    session = uow.sessions.get(letter.cursor.session_id)
    forgotten = session is not None and letter.entry.seq < first_told(session)
    return type(error).__name__ if forgotten else said(error)
