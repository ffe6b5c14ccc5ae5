"""Wall clocks: which instant it is when a zone's clock shows a time, also where it jumps over it or shows it twice.

An instant is a float: seconds since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from everthread.domain.errors import BadPolicy

_ONE_DAY = timedelta(days=1)


def zone_named(name: str) -> tzinfo:
    """The time zone of that name. Raises `BadPolicy` if there is none."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - it costs a start more than most have use for

    try:
        return ZoneInfo(name)
    # A name that is a directory of the zone database ("Europe") is an OSError, a malformed one a ValueError.
    except (KeyError, ValueError, OSError) as error:
        if not available_timezones():
            raise BadPolicy(
                "this machine has no time zone data, so only UTC can be used; install it with: pip install tzdata"
            ) from error
        raise BadPolicy(
            f"zone {name[:60]!r} is not a known time zone: give an IANA name such as 'Europe/Berlin' or 'UTC'."
        ) from error


def first_reading(day: date, at: time, zone: tzinfo) -> float | None:
    """The first instant at which the zone's clock shows that time of that day, or has jumped over it.

    None if it has jumped over the whole day.
    """
    reading = datetime.combine(day, at)
    first = reading.replace(tzinfo=zone).timestamp()
    second = reading.replace(tzinfo=zone, fold=1).timestamp()
    if first <= second:
        return first
    # The reading is in a gap. Both answers are then wrong, by design of `fold`: the second is before the jump,
    # the first is at or after it. The jump is where the clock comes to show more than the reading it left out.
    candidates = range(int(second) + 1, int(first) + 1)
    jump = candidates[bisect_left(candidates, reading, key=lambda instant: wall(instant, zone))]
    gap_end = wall(jump, zone)
    gap_start = gap_end - timedelta(seconds=first - second)
    midnight = datetime.combine(day, time())
    if gap_start <= midnight and gap_end >= midnight + _ONE_DAY:
        return None
    return float(jump)


def wall(instant: float, zone: tzinfo) -> datetime:
    """What the zone's clock shows then."""
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
