"""When a conversation that nobody continued starts afresh: reset policies, as pure functions of instants.

An instant is a float: seconds since the epoch, UTC. Wall clocks appear only inside the daily rule.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum

from msgspec import Struct, field

from everthread.domain.errors import BadPolicy
from everthread.domain.model import ChatType, SessionKey

# Two days short of what datetime can hold, so that no zone's offset leads out of the calendar.
_EARLIEST = datetime(1, 1, 3, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 29, tzinfo=UTC).timestamp()
_LAST_DAY = date(9999, 12, 29).toordinal()
_ONE_DAY = timedelta(days=1)


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
        try:
            _zone(self.zone)
        # A name that is a directory of the zone database ("Europe") is an OSError, a malformed one a ValueError.
        except (KeyError, ValueError, OSError) as error:
            raise BadPolicy(
                f"zone {self.zone!r} is not a known time zone: give an IANA name such as 'Europe/Berlin' or 'UTC'."
            ) from error

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
        daily = None if self.daily_hour is None else _next_daily(last_active, self.daily_hour, _zone(self.zone))
        if daily is not None and (idle is None or daily <= idle):
            return daily, ExpiryReason.DAILY
        return None if idle is None else (idle, ExpiryReason.IDLE)


class ResetPolicies(Struct, frozen=True):
    """Which policy a session key is under: its platform's, else its chat type's, else the default."""

    default: ResetPolicy
    by_platform: Mapping[str, ResetPolicy] = field(default_factory=dict[str, ResetPolicy])
    by_chat_type: Mapping[ChatType, ResetPolicy] = field(default_factory=dict[ChatType, ResetPolicy])

    def of(self, key: SessionKey) -> ResetPolicy:
        """The one policy for this key; overrides replace a policy whole, they are not merged."""
        return self.by_platform.get(key.platform) or self.by_chat_type.get(key.chat_type) or self.default


def _zone(name: str) -> tzinfo:
    """The time zone of that name; a KeyError if there is none."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - it costs a command's start more than most have use for

    return ZoneInfo(name)


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
        occurrence = _occurrence(date.fromordinal(day), hour, zone)
        if occurrence is not None and occurrence > second:
            return occurrence
    return None


def _occurrence(day: date, hour: int, zone: tzinfo) -> float | None:
    """The first instant at which the zone's clock shows that hour of that day, or has jumped over it.

    None if it has jumped over the whole day.
    """
    wall = datetime.combine(day, time(hour))
    first = wall.replace(tzinfo=zone).timestamp()
    second = wall.replace(tzinfo=zone, fold=1).timestamp()
    if first <= second:
        return first
    # The reading is in a gap. Both answers are then wrong, by design of `fold`: the second is before the jump,
    # the first is at or after it. The jump is where the clock comes to show more than the reading it left out.
    candidates = range(int(second) + 1, int(first) + 1)
    jump = candidates[bisect_left(candidates, wall, key=lambda instant: _wall(instant, zone))]
    gap_end = _wall(jump, zone)
    gap_start = gap_end - timedelta(seconds=first - second)
    midnight = datetime.combine(day, time())
    if gap_start <= midnight and gap_end >= midnight + _ONE_DAY:
        return None
    return float(jump)


def _wall(instant: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
