"""Recurrence rules, compared with a simulation that reads the clock each minute."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.domain.cron import Expression, parse_cron
from everthread.domain.errors import BadInput, BadPolicy, BadRecurrence
from everthread.domain.recurrence import (
    ALL_MAX,
    At,
    Cron,
    Every,
    MissedPolicy,
    due_occurrences,
    format_in_zone,
    occurrences,
    parse_recurrence,
    shortest_interval_s,
)

# Zones with changes at night, at midnight, by half an hour, by two hours, and without changes.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Africa/Cairo": ("2026-04-24", "2026-10-30"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "Asia/Beirut": ("2026-03-29", "2026-10-25"),
    "Atlantic/Azores": ("2026-03-29", "2026-10-25"),
    "Antarctica/Troll": ("2026-03-29", "2026-10-25"),
    "America/Toronto": ("1919-03-31", "1919-10-26"),
    "Pacific/Apia": ("2011-12-30", "2012-04-01"),
    "Asia/Kolkata": ("2026-03-29", "2026-10-25"),
    "UTC": ("2024-02-29", "2026-12-31"),
}


def instant(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def named(expression: Expression, day: datetime) -> bool:
    return expression.matches_day(day.date()) and day.hour in expression.hours and day.minute in expression.minutes


def looked_up(expression: Expression, zone: str, begin: float, end: float) -> list[float]:
    """Return the occurrences found by reading the clock every minute and remembering past readings."""
    place, found, seen = ZoneInfo(zone), list[float](), set[datetime]()
    before: datetime | None = None
    at = begin - 2 * 86_400
    while at < end:
        shown = datetime.fromtimestamp(at, place).replace(tzinfo=None)
        due_now = named(expression, shown) and (expression.hours == frozenset(range(24)) or shown not in seen)
        if before is not None and shown > before + timedelta(minutes=1) and expression.hours != frozenset(range(24)):
            left_out = [before + timedelta(minutes=n) for n in range(1, int((shown - before).total_seconds() // 60))]
            whole_days = {m.date() for m in left_out if sum(o.date() == m.date() for o in left_out) == 1440}
            due_now = due_now or any(named(expression, m) and m.date() not in whole_days for m in left_out)
            seen.update(left_out)
        seen.add(shown)
        if due_now and at >= begin:
            found.append(at)
        before = shown
        at += 60
    return found


def fields() -> st.SearchStrategy[str]:
    def field(lowest: int, highest: int) -> st.SearchStrategy[str]:
        numbers = st.integers(lowest, highest)
        ranges = st.tuples(numbers, numbers).map(lambda two: f"{min(two)}-{max(two)}")
        one = st.one_of(numbers.map(str), ranges, st.integers(1, 29).map(lambda n: f"*/{n}"))
        return st.one_of(st.just("*"), st.lists(one, min_size=1, max_size=3).map(",".join))

    # Hours around clock changes.
    hours = st.one_of(field(0, 23), st.sampled_from(["*", "0", "1", "2", "3", "1-3", "0-4", "23", "*/2"]))
    days = st.one_of(st.just("*"), field(1, 28))
    return st.tuples(field(0, 59), hours, days, st.just("*"), st.one_of(st.just("*"), field(0, 7))).map(" ".join)


@pytest.mark.timeout(60)
@settings(max_examples=50, deadline=None)
@given(fields(), st.sampled_from(sorted(CHANGES)), st.integers(0, 1))
def test_an_expression_matches_the_simulation_that_reads_every_minute(text: str, zone: str, which: int) -> None:
    expression = parse_cron(text)
    middle = instant(CHANGES[zone][which], "UTC")
    begin, end = middle - 86_400, middle + 2 * 86_400
    expected = looked_up(expression, zone, begin, end)
    plan, found = Cron(expression, zone), list[float]()
    for at in occurrences(plan, begin - 1):
        if at >= end:
            break
        found.append(at)
    assert found == expected


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        ("0 8 * * 1-5", "Europe/Berlin", "2026-11-20 08:00", "2026-11-23 08:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-29 03:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", "2026-10-25 02:30"),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23 12:00", "2026-04-24 01:00"),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", "2026-10-04 02:30"),
        ("0 0 29 2 *", "UTC", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 13 * fri", "UTC", "2026-11-16 00:00", "2026-11-20 00:00"),
        ("@weekly", "UTC", "2026-11-16 00:00", "2026-11-22 00:00"),
        ("0 12 * DEC MON-WED", "UTC", "2026-11-16 00:00", "2026-12-01 12:00"),
        ("0 0 * * 6-7", "UTC", "2026-11-21 12:00", "2026-11-22 00:00"),
        ("5/20 3 * * *", "UTC", "2026-11-21 03:05", "2026-11-21 03:25"),
    ],
)
def test_the_next_occurrence(text: str, zone: str, after: str, expected: str) -> None:
    plan = parse_recurrence(text, zone, 0.0)
    assert plan.after(instant(after, zone)) == instant(expected, zone)


def test_a_repeated_time_occurs_once_and_an_hourly_rule_every_elapsed_hour() -> None:
    begin, end = instant("2026-10-25 00:00", "Europe/Berlin"), instant("2026-10-26 00:00", "Europe/Berlin")

    def count(text: str) -> int:
        return sum(1 for _ in until(parse_recurrence(text, "Europe/Berlin", 0.0), begin - 1, end))

    assert end - begin == 25 * 3600
    assert count("30 2 * * *") == 1
    assert count("0 2,3 * * *") == 2
    assert count("0 * * * *") == 25
    assert count("*/30 * * * *") == 50


def until(plan: Cron | Every | At, after: float, end: float) -> Iterator[float]:
    for at in occurrences(plan, after):
        if at >= end:
            return
        yield at


def test_an_interval_counts_elapsed_time_over_clock_changes() -> None:
    anchor = instant("2026-03-28 20:00", "Europe/Berlin")
    plan = parse_recurrence("every 2h", "Europe/Berlin", anchor)
    found = list(until(plan, anchor, anchor + 86_400))
    assert [later - sooner for sooner, later in zip([anchor, *found], found, strict=False)] == [7200.0] * 11
    assert parse_recurrence("every 1h30m", "UTC", 5.0) == Every(5400.0, 5.0)


@given(st.floats(1.7e9, 1.9e9), st.integers(60, 10**6), st.floats(-1e6, 1e6))
def test_an_interval_has_a_next_occurrence(anchor: float, seconds: int, since: float) -> None:
    plan = Every(float(seconds), math.floor(anchor))
    found = plan.after(anchor + since)
    assert anchor + since < found <= max(anchor + since, plan.anchor) + seconds
    assert plan.after(found) == found + seconds


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("at 2026-11-23 08:00", "Europe/Berlin", "2026-11-23 07:00"),
        ("at 2026-11-23T08:00:00Z", "Europe/Berlin", "2026-11-23 08:00"),
        ("AT 2026-11-23 08:00+05:30", "UTC", "2026-11-23 02:30"),
        ("at 9:00", "UTC", "2026-11-17 09:00"),
        ("at 11:00", "UTC", "2026-11-16 11:00"),
        ("at 2027-03-28 02:30", "Europe/Berlin", "2027-03-28 01:00"),
        ("in 20m", "UTC", "2026-11-16 10:20"),
    ],
)
def test_a_single_time_occurs_once(text: str, zone: str, expected: str) -> None:
    now = instant("2026-11-16 10:00")
    plan = parse_recurrence(text, zone, now)
    assert plan == At(instant(expected))
    assert plan.after(instant(expected)) is None
    assert parse_recurrence(text, zone, now) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "give a time"),
        ("x" * 300, "give a time"),
        ("tomorrow", "five fields"),
        ("0 8 * *", "five fields"),
        ("0 8 * * 1-5 2026", "five fields"),
        ("60 8 * * *", "from 0 to 59"),
        ("0 24 * * *", "from 0 to 23"),
        ("0 8 0 * *", "from 1 to 31"),
        ("0 8 * 13 *", "from 1 to 12"),
        ("0 8 * * 8", "from 0 to 7"),
        ("0 8 * * mo", "not a valid weekday"),
        ("0 8 * foo *", "name such as feb"),
        ("0 22-2 * * *", "22-23,0-2"),
        ("*/0 * * * *", "1 or more"),
        ("*-5 * * * *", "write \\* alone"),
        ("0 8 L * *", "not a valid day"),
        ("0 8 * * 5#2", "not a valid weekday"),
        ("0,,1 * * * *", "not a valid minute"),
        ("0 0 30 2 *", "never occurs"),
        ("0 0 31 4,6 *", "never occurs"),
        ("@reboot", "is unknown"),
        ("every", "not a duration"),
        ("every 10s", "from 1 minute"),
        ("every 400d", "to 1 year"),
        ("every two hours", "not a duration"),
        ("at 25:00", "not a time"),
        ("at 2026-11-16 09:00", "in the past"),
        ("at 2126-11-16 09:00", "too far"),
        ("at 2026-11-17", "not a time"),
        ("in 5s", "from 1 minute"),
    ],
)
def test_an_invalid_expression_is_reported(text: str, says: str) -> None:
    with pytest.raises(BadRecurrence, match=says):
        parse_recurrence(text, "UTC", instant("2026-11-16 10:00"))


def test_an_invalid_zone_is_reported() -> None:
    for zone in ("Mars/Base", "", "Europe", "../etc", "a\0b", "CEST5"):
        with pytest.raises(BadPolicy, match="Europe/Berlin"):
            parse_recurrence("0 8 * * *", zone, 0.0)


def test_missing_zone_data_is_reported_with_the_install_command() -> None:
    script = (
        "import sys; sys.modules['tzdata'] = None\n"
        "from everthread.domain.recurrence import parse_recurrence\n"
        "print(parse_recurrence('0 8 * * *', 'UTC', 0.0).zone)\n"
        "try: parse_recurrence('0 8 * * *', 'Europe/Berlin', 0.0)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONTZPATH": ""},
        check=True,
    ).stdout.splitlines()
    assert said[0] == "UTC"
    assert said[1].startswith("BadPolicy")
    assert "pip install tzdata" in said[1]


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(BadInput):
        parse_recurrence(text, "UTC", 1_800_000_000.0)


# --- Missed occurrences ----------------------------------------------------------------------------------------------

HOURLY = Cron(parse_cron("0 * * * *"), "UTC")
NOON = instant("2026-11-16 12:00")


@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        # On time: the policy does not matter.
        *((missed, NOON + 5, (NOON,)) for missed in MissedPolicy),
        # Five hours late.
        (MissedPolicy.SKIP, NOON + 5.5 * 3600, ()),
        (MissedPolicy.ONCE, NOON + 5.5 * 3600, (NOON + 5 * 3600,)),
        (MissedPolicy.ALL, NOON + 5.5 * 3600, tuple(NOON + n * 3600 for n in range(6))),
        # Late for the first ones, on time for the last.
        (MissedPolicy.SKIP, NOON + 5 * 3600 + 5, (NOON + 5 * 3600,)),
        (MissedPolicy.ONCE, NOON + 5 * 3600 + 5, (NOON + 5 * 3600,)),
    ],
)
def test_missed_occurrences_follow_the_policy(missed: MissedPolicy, now: float, expected: tuple[float, ...]) -> None:
    found = due_occurrences(HOURLY, NOON, now, missed)
    assert found.now == expected
    assert found.next_at == HOURLY.after(now)


def test_nothing_is_due_before_its_time() -> None:
    assert due_occurrences(HOURLY, NOON, NOON - 1, MissedPolicy.ALL).now == ()
    assert due_occurrences(HOURLY, NOON, NOON - 1, MissedPolicy.ALL).next_at == NOON


def test_years_of_missed_minutes_are_not_enumerated() -> None:
    import time

    plan = Cron(parse_cron("* * * * *"), "Europe/Berlin")
    begun = time.process_time()
    found = due_occurrences(plan, NOON, NOON + 5 * 366 * 86_400, MissedPolicy.ALL)
    assert time.process_time() - begun < 1.0
    assert len(found.now) == ALL_MAX
    assert found.now[-1] == NOON + 5 * 366 * 86_400


def test_a_missed_single_time_does_not_occur_again() -> None:
    plan = At(NOON)
    assert due_occurrences(plan, NOON, NOON + 9999, MissedPolicy.ONCE) == due_occurrences(
        plan, NOON, NOON + 9999, MissedPolicy.ALL
    )
    assert due_occurrences(plan, NOON, NOON + 9999, MissedPolicy.SKIP).now == ()
    assert due_occurrences(plan, NOON, NOON + 9999, MissedPolicy.SKIP).next_at is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1, 20_000), min_size=1, max_size=40), st.sampled_from(list(MissedPolicy)))
def test_no_occurrence_is_repeated_and_policy_all_skips_none(steps: list[float], missed: MissedPolicy) -> None:
    plan = Cron(parse_cron("*/17 2,3 * * *"), "Europe/Berlin")
    now = begin = instant("2026-10-24 23:00", "Europe/Berlin")
    next_at, done = plan.after(now), list[float]()
    for step in steps:
        now += step
        assert next_at is not None
        found = due_occurrences(plan, next_at, now, missed)
        done += found.now
        next_at = found.next_at
    assert done == sorted(set(done))
    every = [at for at in until(plan, begin, now + 1) if at <= now]
    assert set(done) <= set(every)
    if missed is MissedPolicy.ALL and max(steps) < 20 * 60:
        assert done == every


def test_the_shortest_interval_of_a_rule() -> None:
    assert shortest_interval_s(parse_recurrence("*/5 8 * * *", "UTC", 0.0), NOON) == 300
    assert shortest_interval_s(parse_recurrence("every 2h", "UTC", 0.0), NOON) == 7200
    assert shortest_interval_s(At(NOON), 0.0) == math.inf
    assert shortest_interval_s(parse_recurrence("*/5 8 29 2 *", "UTC", 0.0), NOON) == 300
    assert shortest_interval_s(parse_recurrence("0 8 29 2 *", "UTC", 0.0), NOON) == math.inf, "the search is bounded"


def test_a_time_is_formatted_with_its_zone() -> None:
    assert format_in_zone(instant("2026-11-23 07:00"), "Europe/Berlin") == "Mon 2026-11-23 08:00 Europe/Berlin"
    twice = [format_in_zone(instant("2026-10-25 00:30") + passed, "Europe/Berlin") for passed in (0, 3600)]
    assert twice == ["Sun 2026-10-25 02:30 (CEST) Europe/Berlin", "Sun 2026-10-25 02:30 (CET) Europe/Berlin"]
