"""Recurrences of scheduled tasks: once, at an interval, or by a cron expression. Pure.

The store keeps the text, the zone and the anchor. These always give the same instants, so an instant identifies an
occurrence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from enum import StrEnum

from msgspec import Struct

from everthread.domain.cron import Expression, parse_cron
from everthread.domain.errors import BadRecurrence
from everthread.domain.timezones import first_instant, load_zone, wall_time

TEXT_CHARS_MAX = 200
EVERY_S_MIN = 60.0
EVERY_S_MAX = 366 * 86_400.0
AT_S_MAX = 10 * EVERY_S_MAX
ALL_MAX = 24
"""The maximum number of missed occurrences that are caught up, the latest ones."""
ON_TIME_S = 60.0
"""An occurrence counts as missed after this delay."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_EVERY = re.compile(r"(?:\d{1,9}[smhdw])+")
_PIECE = re.compile(r"(\d{1,9})([smhdw])")
_COMPARED_MAX = 64
_YEAR_MIN, _YEAR_MAX = 1970, 9999
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")


class At(Struct, frozen=True):
    """A single occurrence."""

    instant: float

    def after(self, instant: float) -> float | None:
        """Return the first occurrence strictly after the instant; None if there is none."""
        return self.instant if self.instant > instant else None


class Every(Struct, frozen=True):
    """An interval of elapsed seconds, counted from the anchor. Clock changes of a zone do not affect it."""

    seconds: float
    anchor: float

    def after(self, instant: float) -> float:
        """Return the first occurrence strictly after the instant."""
        if instant < self.anchor:
            return self.anchor + self.seconds
        return self.anchor + (math.floor((instant - self.anchor) / self.seconds) + 1) * self.seconds


class Cron(Struct, frozen=True):
    """A cron expression in a time zone."""

    expression: Expression
    zone: str

    def after(self, instant: float) -> float | None:
        """Return the first occurrence strictly after the instant; None if there is none for years."""
        return self.expression.after(instant, load_zone(self.zone))


Recurrence = At | Every | Cron


class MissedPolicy(StrEnum):
    """The treatment of occurrences that were missed: skip them, run the latest one, or run all."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class DueOccurrences(Struct, frozen=True):
    """The occurrences to run now, in order, and the time of the next one. `skipped` is the latest one left out."""

    now: tuple[float, ...]
    next_at: float | None
    skipped: float | None = None


def parse_recurrence(text: str, zone: str, anchor: float) -> Recurrence:
    """Parse `at 2026-11-23 08:00`, `at 8:00`, `in 20m`, `every 2h`, or a cron expression.

    `anchor` is the creation time. Intervals are counted from it, and a time without a date is the first one after it.
    Raises `BadRecurrence`, or `BadPolicy` if the zone is unknown.
    """
    words = " ".join(text.split())
    if not words or len(text) > TEXT_CHARS_MAX or not words.isprintable():
        raise BadRecurrence(
            'give a time: a cron expression such as "0 8 * * 1-5", "every 2h", "in 20m", or "at 2026-11-23 08:00"'
        )
    load_zone(zone)
    word, _, rest = words.lower().partition(" ")
    if word == "every":
        return Every(_interval(rest, text), anchor)
    if word == "in":
        return At(anchor + _interval(rest, text))
    if word == "at":
        return At(_instant(rest, zone, anchor))
    return Cron(parse_cron(words), zone)


def shortest_interval_s(plan: Recurrence, since: float) -> float:
    """Return the shortest time between two of the next occurrences; `inf` if there are fewer than two.

    At most 64 occurrences within about a year are compared.
    """
    if isinstance(plan, Every):
        return plan.seconds
    found: list[float] = []
    for at in occurrences(plan, since):
        # Bounded, because iterating over a century of 29ths of February is slow.
        if len(found) == _COMPARED_MAX or (found and at > found[0] + EVERY_S_MAX):
            break
        found.append(at)
    return min((later - sooner for sooner, later in zip(found, found[1:], strict=False)), default=math.inf)


def occurrences(plan: Recurrence, after: float) -> Iterator[float]:
    """Yield all occurrences strictly after the instant, in order."""
    while (found := plan.after(after)) is not None:
        yield found
        after = found


def due_occurrences(plan: Recurrence, next_at: float, now: float, missed: MissedPolicy) -> DueOccurrences:
    """Return the occurrences of a plan that are due at `now`. `next_at` is the first one not handled yet."""
    if next_at > now:
        return DueOccurrences((), next_at)
    latest = _latest(plan, next_at, now)
    following = plan.after(now)
    late = [at for at in latest if now - at > ON_TIME_S]
    on_time = tuple(at for at in latest if now - at <= ON_TIME_S)
    match missed:
        case MissedPolicy.ALL:
            return DueOccurrences(latest, following)
        case MissedPolicy.ONCE:
            return DueOccurrences(latest[-1:], following, latest[-2] if len(latest) > 1 else None)
        case MissedPolicy.SKIP:
            return DueOccurrences(on_time, following, late[-1] if late else None)


def format_in_zone(instant: float, zone: str) -> str:
    """Format an instant as `Mon 2026-11-23 08:00 Europe/Berlin`, with the zone's abbreviation if it is ambiguous."""
    local = datetime.fromtimestamp(instant, load_zone(zone))
    offset = f" ({local:%Z})" if local.replace(fold=1 - local.fold).utcoffset() != local.utcoffset() else ""
    return f"{local:%a %Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''}{offset} {zone}"


def _latest(plan: Recurrence, first: float, now: float) -> tuple[float, ...]:
    """Return the last occurrences from `first` up to now, at most `ALL_MAX`, without iterating over all of them."""
    span_s = 120.0
    while True:
        begin = max(first, now - span_s)
        found = [begin] if begin == first else []
        for at in occurrences(plan, begin):
            if at > now:
                break
            found.append(at)
        if begin == first or len(found) >= ALL_MAX:
            return tuple(found[-ALL_MAX:])
        span_s *= 4


def _interval(text: str, whole: str) -> float:
    words = text.replace(" ", "")
    if not _EVERY.fullmatch(words):
        raise BadRecurrence(f"{whole[:60]!r} is not a duration; write one such as 30m, 2h, 1h30m or 7d")
    seconds = float(sum(int(number) * _UNITS[unit] for number, unit in _PIECE.findall(words)))
    if not EVERY_S_MIN <= seconds <= EVERY_S_MAX:
        raise BadRecurrence(f"{whole[:60]!r}: a duration must be from 1 minute to 1 year")
    return seconds


def _instant(text: str, zone: str, now: float) -> float:
    clock = _CLOCK.fullmatch(text)
    instant = _next_showing(int(clock[1]), int(clock[2]), zone, now) if clock else _written_out(text, zone)
    if instant is None:
        raise BadRecurrence(
            f"{text[:40]!r} is not a time; write one such as 2026-11-23 08:00, or 08:00 for the next one"
        )
    if instant <= now:
        raise BadRecurrence(f"{text[:40]!r} is in the past; give a future time")
    if instant > now + AT_S_MAX:
        raise BadRecurrence(f"{text[:40]!r} is too far away; give a time within ten years")
    return float(math.floor(instant))


def _next_showing(hour: int, minute: int, zone: str, now: float) -> float | None:
    if hour > 23 or minute > 59:
        return None
    place = load_zone(zone)
    today = wall_time(now, place).date()
    days = (first_instant(today + timedelta(days=ahead), time(hour, minute), place) for ahead in range(3))
    return next((at for at in days if at is not None and at > now), None)


def _written_out(text: str, zone: str) -> float | None:
    try:
        written = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    if len(text) < len("2026-11-23T08:00") or not _YEAR_MIN < written.year < _YEAR_MAX:
        return None
    if written.tzinfo is not None:
        return written.timestamp()
    return first_instant(written.date(), written.time(), load_zone(zone))
