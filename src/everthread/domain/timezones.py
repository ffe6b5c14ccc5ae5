"""Convert between wall-clock times of a zone and instants, including times that are skipped or occur twice.

An instant is a float: seconds since the epoch, UTC. Tested in tests/unit/domain/test_reset_policy.py and
tests/unit/domain/test_recurrence.py.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from everthread.domain.errors import BadPolicy

_ONE_DAY = timedelta(days=1)


def load_zone(name: str) -> tzinfo:
    """Return the time zone with this IANA name. Raises `BadPolicy` if it is unknown."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - it costs a start more than most have use for

    try:
        return ZoneInfo(name)
    # ZoneInfo raises OSError for a directory of the zone database ("Europe"), and ValueError for a malformed name.
    except (KeyError, ValueError, OSError) as error:
        if not available_timezones():
            raise BadPolicy(
                "this machine has no time zone data, so only UTC can be used; install it with: pip install tzdata"
            ) from error
        raise BadPolicy(
            f"zone {name[:60]!r} is not a known time zone: give an IANA name such as 'Europe/Berlin' or 'UTC'."
        ) from error


def first_instant(day: date, at: time, zone: tzinfo) -> float | None:
    """Return the first instant at which the zone's clock shows that time of that day, or has skipped it.

    Returns None if the clock skips the whole day.
    """
    reading = datetime.combine(day, at)
    first = reading.replace(tzinfo=zone).timestamp()
    second = reading.replace(tzinfo=zone, fold=1).timestamp()
    if first <= second:
        return first
    # The reading is in a gap. Both instants are then wrong, by design of `fold`: `second` is before the jump, `first`
    # at or after it. The jump is the first instant between them at which the clock shows at least the reading.
    candidates = range(int(second) + 1, int(first) + 1)
    jump = candidates[bisect_left(candidates, reading, key=lambda instant: wall_time(instant, zone))]
    gap_end = wall_time(jump, zone)
    gap_start = gap_end - timedelta(seconds=first - second)
    midnight = datetime.combine(day, time())
    if gap_start <= midnight and gap_end >= midnight + _ONE_DAY:
        return None
    return float(jump)


def wall_time(instant: float, zone: tzinfo) -> datetime:
    """Return the naive local time of the zone at an instant."""
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
