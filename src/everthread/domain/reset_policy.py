"""Reset policies: expire a session after idle time, daily, or never. Pure functions of instants.

An instant is a float: seconds since the epoch, UTC. Wall clocks appear only inside the daily rule.
"""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, tzinfo
from enum import StrEnum

from msgspec import Struct, field

from everthread.domain.errors import BadPolicy
from everthread.domain.model import CRON_PLATFORM, ChatType, SessionKey, Timer
from everthread.domain.timezones import first_instant, load_zone

# Two days inside the range of datetime, so that no zone's offset overflows it.
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 29, tzinfo=UTC).timestamp()
_LAST_DAY = date(9999, 12, 29).toordinal()


class ExpiryReason(StrEnum):
    """The rule of a policy that expired a session."""

    IDLE = "idle"
    DAILY = "daily"


class ResetPolicy(Struct, frozen=True):
    """Expiry rules: after `idle_s` seconds without activity, daily at `daily_hour` in `zone`, both, or none.

    The daily rule has one occurrence per local date of the zone:

    - in a daylight-saving gap, the first instant after the gap; in an overlap, the first of the two instants;
    - a date that the zone skipped (Apia, 2011-12-30) has none, so no date resets twice;
    - only an occurrence strictly after the last activity expires a session.

    Raises `BadPolicy` if a value is invalid.
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
        load_zone(self.zone)

    def due(self, last_active: float) -> float | None:
        """Return the first instant at which a session with this last activity is expired; None if it never expires."""
        deadline = self._deadline(last_active)
        return None if deadline is None else deadline[0]

    def expired(self, last_active: float, at: float) -> ExpiryReason | None:
        """Return the rule that has expired a session with this last activity at `at`; None before `due`.

        It is the rule with the earliest deadline, even if both have passed; daily if the deadlines are equal.
        """
        deadline = self._deadline(last_active)
        if deadline is None or not at >= deadline[0]:
            return None
        return deadline[1]

    def _deadline(self, last_active: float) -> tuple[float, ExpiryReason] | None:
        idle = None if self.idle_s is None else last_active + self.idle_s
        daily = None if self.daily_hour is None else _next_daily(last_active, self.daily_hour, load_zone(self.zone))
        if daily is not None and (idle is None or daily <= idle):
            return daily, ExpiryReason.DAILY
        return None if idle is None else (idle, ExpiryReason.IDLE)


_NEVER = ResetPolicy()


class ResetPolicies(Struct, frozen=True):
    """The policies of all session keys: by platform, else by chat type, else the default."""

    default: ResetPolicy
    by_platform: Mapping[str, ResetPolicy] = field(default_factory=dict[str, ResetPolicy])
    by_chat_type: Mapping[ChatType, ResetPolicy] = field(default_factory=dict[ChatType, ResetPolicy])

    def of(self, key: SessionKey) -> ResetPolicy:
        """Return the policy of a key. An override replaces the whole policy; policies are not merged."""
        if key.platform == CRON_PLATFORM and CRON_PLATFORM not in self.by_platform:
            # A scheduled task is idle between two occurrences.
            return _NEVER
        return self.by_platform.get(key.platform) or self.by_chat_type.get(key.chat_type) or self.default

    def timer(self, key: SessionKey, active_at: float, *, not_before: float = 0.0) -> Timer | None:
        """Return the timer that checks the key's session for expiry; None if it never expires."""
        due = self.of(key).due(active_at)
        return Timer(timer_name(key), max(due, not_before), key) if due is not None else None


def timer_name(key: SessionKey) -> str:
    """Return the name of a key's expiry timer."""
    return f"expire:{key}"


def _next_daily(last_active: float, hour: int, zone: tzinfo) -> float | None:
    """Return the first occurrence strictly after `last_active`; None if it is beyond the range of datetime."""
    if not last_active < _LATEST:
        return None
    # Occurrences are whole seconds, so comparing with the floor of the instant gives the same result, and avoids the
    # rounding of datetime.
    second = math.floor(max(last_active, _EARLIEST))
    today = datetime.fromtimestamp(second, zone).toordinal()
    # At most three iterations: today's occurrence may be past, tomorrow's too if the clock went back a day, and a date
    # may be skipped.
    for day in range(today, _LAST_DAY + 1):
        occurrence = first_instant(date.fromordinal(day), time(hour), zone)
        if occurrence is not None and occurrence > second:
            return occurrence
    return None
