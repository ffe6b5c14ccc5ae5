"""When a conversation that nobody continued starts afresh: reset policies, as pure functions of instants.

An instant is a float: seconds since the epoch, UTC. Wall clocks appear only inside the daily rule.
"""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, tzinfo
from enum import StrEnum

from msgspec import Struct, field

from everthread.domain.errors import BadPolicy
from everthread.domain.model import SCHEDULED, ChatType, SessionKey, Timer
from everthread.domain.timezones import first_reading, zone_named

# Two days short of what datetime can hold, so that no zone's offset leads out of the calendar.
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 29, tzinfo=UTC).timestamp()
_LAST_DAY = date(9999, 12, 29).toordinal()


class ExpiryReason(StrEnum):
    """Which rule of a policy ended a session."""

    IDLE = "idle"
    DAILY = "daily"


class ResetPolicy(Struct, frozen=True):
    """When a session expires: after `idle_s` seconds of silence, daily at `daily_hour` in `zone`, both, or never.

    The daily rule has one occurrence per local date of the zone:

    - in a daylight-saving gap it is the first instant after the gap, in an overlap the first of the two;
    - a date that the zone skipped altogether (Apia, 2011-12-30) has none, so no date ever resets twice;
    - only an occurrence strictly after the last activity expires a session.

    Raises BadPolicy if a value makes no sense.
    """

    idle_s: float | None = None
    daily_hour: int | None = None
    zone: str = "UTC"

    def __post_init__(self) -> None:
        if self.idle_s is not None and not 0 < self.idle_s < math.inf:
            raise BadPolicy(
                f"idle_s is {self.idle_s}: give a positive number of seconds, or leave it out for no idle reset."
            )
        if self.daily_hour is not None and self.daily_hour not in range(24):
            raise BadPolicy(
                f"daily_hour is {self.daily_hour}: give a whole hour from 0 to 23, or leave it out for no daily reset."
            )
        zone_named(self.zone)

    def due(self, last_active: float) -> float | None:
        """The first instant at which a session last active then is expired; None if it never is."""
        deadline = self._deadline(last_active)
        return None if deadline is None else deadline[0]

    def expired(self, last_active: float, at: float) -> ExpiryReason | None:
        """Why a session last active then is expired at `at`; None while it is not, that is, before `due`.

        The reason is the rule whose deadline came first, whatever else has passed since; daily if both are one instant.
        """
        deadline = self._deadline(last_active)
        if deadline is None or not at >= deadline[0]:
            return None
        return deadline[1]

    def _deadline(self, last_active: float) -> tuple[float, ExpiryReason] | None:
        idle = None if self.idle_s is None else last_active + self.idle_s
        daily = None if self.daily_hour is None else _next_daily(last_active, self.daily_hour, zone_named(self.zone))
        if daily is not None and (idle is None or daily <= idle):
            return daily, ExpiryReason.DAILY
        return None if idle is None else (idle, ExpiryReason.IDLE)


_NEVER = ResetPolicy()


class ResetPolicies(Struct, frozen=True):
    """Which policy a session key is under: its platform's, else its chat type's, else the default."""

    default: ResetPolicy
    by_platform: Mapping[str, ResetPolicy] = field(default_factory=dict[str, ResetPolicy])
    by_chat_type: Mapping[ChatType, ResetPolicy] = field(default_factory=dict[ChatType, ResetPolicy])

    def of(self, key: SessionKey) -> ResetPolicy:
        """The one policy for this key; overrides replace a policy whole, they are not merged."""
        if key.platform == SCHEDULED and SCHEDULED not in self.by_platform:
            # Nobody is expected to say anything there between one time and the next.
            return _NEVER
        return self.by_platform.get(key.platform) or self.by_chat_type.get(key.chat_type) or self.default

    def timer(self, key: SessionKey, active_at: float, *, not_before: float = 0.0) -> Timer | None:
        """Return the timer that checks the key's session for expiry; None if it never expires."""
        due = self.of(key).due(active_at)
        return Timer(timer_name(key), max(due, not_before), key) if due is not None else None


def timer_name(key: SessionKey) -> str:
    """Name the expiry timer of a key."""
    return f"expire:{key}"


def _next_daily(last_active: float, hour: int, zone: tzinfo) -> float | None:
    """The first occurrence strictly after `last_active`; None if the calendar ends before it."""
    if not last_active < _LATEST:
        return None
    # Occurrences are whole seconds, so "after the instant" and "after its whole second" are the same question,
    # and the second is free of the rounding that datetime does.
    second = math.floor(max(last_active, _EARLIEST))
    today = datetime.fromtimestamp(second, zone).toordinal()
    # Ends within three rounds: today's may be past, tomorrow's too if the clock went back a day, one may be skipped.
    for day in range(today, _LAST_DAY + 1):
        occurrence = first_reading(date.fromordinal(day), time(hour), zone)
        if occurrence is not None and occurrence > second:
            return occurrence
    return None
