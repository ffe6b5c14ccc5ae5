"""Parse cron expressions of five fields strictly, and find their instants in a time zone.

An expression with every hour (`*`) follows elapsed time: it runs in both of two hours that have the same name when the
clock is set back, and not in an hour that the clock skips. Every other expression names times of day: a time that the
clock skips is the instant of the jump, and of a time that it shows twice only the first one counts.

Tested in tests/unit/domain/test_recurrence.py.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from datetime import date, time, timedelta, tzinfo

from msgspec import Struct

from everthread.domain.errors import BadRecurrence
from everthread.domain.timezones import first_instant, wall_time

EXPRESSION_CHARS_MAX = 200
_ONE_DAY = timedelta(days=1)
_HOURS = frozenset(range(24))
_DAYS_AHEAD_MAX = 366 * 9
"""A 29th of February may be eight years away."""
_FOLD_S_MAX = 3 * 3600
_DAYS_IN = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PART = re.compile(r"(?P<first>\*|[a-z]{3}|\d{1,2})(?:-(?P<last>[a-z]{3}|\d{1,2}))?(?:/(?P<step>\d{1,2}))?")


class Expression(Struct, frozen=True):
    """A parsed cron expression: the allowed values of each field."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either: bool
    """Days of the month and of the week are both restricted: a day that matches one of the two is enough."""

    def matches_day(self, day: date) -> bool:
        """Return True if the expression matches the day."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week

    def after(self, instant: float, zone: tzinfo) -> float | None:
        """Return the first matching instant strictly after `instant`; None if there is none for years."""
        return self._next_elapsed_minute(instant, zone) if self.hours == _HOURS else self._next_wall_time(instant, zone)

    def _next_day(self, day: date) -> date | None:
        """Return the first matching day from `day` on."""
        ahead = (day + timedelta(days=number) for number in range(_DAYS_AHEAD_MAX))
        return next((each for each in ahead if self.matches_day(each)), None)

    def _next_wall_time(self, instant: float, zone: tzinfo) -> float | None:
        """Return the next time of day that the clock shows or skips."""
        # Includes the day before: a clock that is set back over midnight shows that day again.
        day = self._next_day(wall_time(instant, zone).date() - _ONE_DAY)
        while day is not None:
            found, following = self._wall_time_on(day, instant, zone), day + _ONE_DAY
            if found is not None:
                midnight = first_instant(following, time(), zone)
                if midnight is not None and midnight <= found and self.matches_day(following):
                    # The clock is set back over midnight: the next day begins before this one is over.
                    return min(found, self._wall_time_on(following, instant, zone) or found)
                return found
            day = self._next_day(following)
        return None

    def _wall_time_on(self, day: date, after: float, zone: tzinfo) -> float | None:
        """Return the first time of that day whose instant is after `after`; None for a day that the zone skips."""
        if first_instant(day, time(), zone) is None:
            return None
        hours, minutes = sorted(self.hours), sorted(self.minutes)

        def shown(place: int) -> float:
            hour, minute = divmod(place, len(minutes))
            return first_instant(day, time(hours[hour], minutes[minute]), zone) or 0.0

        places = range(len(hours) * len(minutes))
        place = bisect_right(places, after, key=shown)
        return shown(place) if place < len(places) else None

    def _next_elapsed_minute(self, instant: float, zone: tzinfo) -> float | None:
        """Return the next elapsed minute that matches, in any hour of a matching day."""
        at = math.floor(instant) + 1.0
        day = wall_time(at, zone).date()
        while (day := self._next_day(day)) is not None:
            begins = first_instant(day, time(), zone)
            if begins is not None:
                at = max(at, begins - _FOLD_S_MAX)
            shown = wall_time(at, zone)
            while shown.second or not (self.matches_day(shown.date()) and shown.minute in self.minutes):
                at += 60 - shown.second
                shown = wall_time(at, zone)
                if shown.date() > day and not self.matches_day(shown.date()):
                    break
            else:
                return at
            day = shown.date()
        return None


def parse_cron(text: str) -> Expression:
    """Parse a cron expression or a nickname such as `@daily`. Raises `BadRecurrence`."""
    expression = " ".join(text.lower().split())
    if expression.startswith("@"):
        if expression not in _NICKNAMES:
            raise BadRecurrence(f"{text[:40]!r} is unknown; use one of {', '.join(_NICKNAMES)}")
        expression = _NICKNAMES[expression]
    fields = expression.split(" ")
    if len(text) > EXPRESSION_CHARS_MAX or len(fields) != 5:
        raise BadRecurrence(
            f"{text[:60]!r} is not a cron expression; write five fields, minute hour day month weekday, "
            'such as "0 8 * * 1-5"'
        )
    minute, hour, day, month, weekday = fields
    found = Expression(
        _field("minute", minute, 0, 59),
        _field("hour", hour, 0, 23),
        _field("day", day, 1, 31),
        _field("month", month, 1, 12, _MONTHS),
        frozenset(number % 7 for number in _field("weekday", weekday, 0, 7, _WEEKDAYS)),
        either=not day.startswith("*") and not weekday.startswith("*"),
    )
    if not found.either and all(min(found.days) > _DAYS_IN[number - 1] for number in found.months):
        raise BadRecurrence(f"{text[:60]!r} never occurs: none of its months has that many days")
    return found


def _field(what: str, text: str, lowest: int, highest: int, names: tuple[str, ...] = ()) -> frozenset[int]:
    return frozenset(number for part in text.split(",") for number in _part(what, part, lowest, highest, names))


def _part(what: str, part: str, lowest: int, highest: int, names: tuple[str, ...]) -> range:
    written = _PART.fullmatch(part)
    if written is None:
        raise BadRecurrence(
            f"{part[:30]!r} is not a valid {what}; write numbers, a-b, */n, or several of them with commas"
        )
    first, last, step = written["first"], written["last"], int(written["step"] or 1)
    if step == 0:
        raise BadRecurrence(f"{part[:30]!r}: a step is 1 or more")
    if first == "*":
        if last is not None:
            raise BadRecurrence(f"{part[:30]!r} is not a valid {what}; write * alone, or with a step: */5")
        # 7 is a second name of Sunday, and would count it twice.
        return range(lowest, (6 if what == "weekday" else highest) + 1, step)
    begin = _number(what, first, lowest, highest, names)
    if last is not None:
        end = _number(what, last, lowest, highest, names)
        # In a range such as 5-0 or fri-sun, Sunday is the end of the week.
        end = 7 if what == "weekday" and end == 0 and begin > 0 else end
    else:
        end = highest if written["step"] else begin
    if end < begin:
        raise BadRecurrence(f"{part[:30]!r}: the range ends before it begins; write two, such as 22-23,0-2")
    return range(begin, end + 1, step)


def _number(what: str, text: str, lowest: int, highest: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + (1 if what == "month" else 0)
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        named = f", or a name such as {names[1]}" if names else ""
        raise BadRecurrence(f"{text[:30]!r} is not a valid {what}; use a number from {lowest} to {highest}{named}")
    return int(text)
