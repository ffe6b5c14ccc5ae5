from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everthread.domain.errors import BadPolicy
from everthread.domain.model import ChatType, SessionKey
from everthread.domain.reset_policy import ExpiryReason, ResetPolicies, ResetPolicy

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def shown(instant: float, zone: str) -> str:
    """Return the local time of a zone at an instant."""
    return datetime.fromtimestamp(instant, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M")


def occurrences(policy: ResetPolicy, since: float, until: float) -> list[float]:
    """Yield every due() from `since` on, each used as the next last activity."""
    found: list[float] = []
    due = policy.due(since)
    while due is not None and due < until:
        found.append(due)
        due = policy.due(due)
    return found


# --- idle, none, both ---


def test_without_rules_a_session_never_expires() -> None:
    assert ResetPolicy().due(0.0) is None
    assert ResetPolicy().expired(0.0, 1e18) is None


def test_idle_expires_at_the_exact_second_and_not_before() -> None:
    policy = ResetPolicy(idle_s=60)
    assert policy.due(1000.0) == 1060.0
    assert policy.expired(1000.0, 1059.999) is None
    assert policy.expired(1000.0, 1060.0) is ExpiryReason.IDLE


def test_a_clock_that_went_backwards_expires_nothing() -> None:
    assert ResetPolicy(idle_s=60, daily_hour=4).expired(utc("2024-05-05T03:00"), utc("2024-05-01T00:00")) is None


def test_the_reason_is_the_earlier_deadline_even_long_after_both() -> None:
    policy = ResetPolicy(idle_s=2 * HOUR_S, daily_hour=4)
    much_later = utc("2025-01-01T00:00")
    assert policy.expired(utc("2024-05-05T03:00"), much_later) is ExpiryReason.DAILY
    assert policy.expired(utc("2024-05-05T05:00"), much_later) is ExpiryReason.IDLE


def test_daily_is_the_reason_if_both_deadlines_are_equal() -> None:
    policy = ResetPolicy(idle_s=HOUR_S, daily_hour=4)
    assert policy.due(utc("2024-05-05T03:00")) == utc("2024-05-05T04:00")
    assert policy.expired(utc("2024-05-05T03:00"), utc("2024-05-05T04:00")) is ExpiryReason.DAILY


# --- daily ---


def test_daily_uses_the_hour_of_its_own_zone() -> None:
    assert ResetPolicy(daily_hour=4, zone="Asia/Tokyo").due(utc("2024-05-05T00:00")) == utc("2024-05-05T19:00")


def test_activity_exactly_at_the_occurrence_is_not_expired_by_it() -> None:
    policy = ResetPolicy(daily_hour=4)
    at_four = utc("2024-05-05T04:00")
    assert policy.due(at_four) == at_four + DAY_S
    assert policy.expired(at_four, at_four) is None


@pytest.mark.parametrize("before_s", [1e-6, 4e-7, 2.4e-7])
def test_activity_just_before_the_occurrence_is_expired_by_it(before_s: float) -> None:
    at_four = utc("2024-05-05T04:00")
    assert at_four - before_s < at_four
    assert ResetPolicy(daily_hour=4).due(at_four - before_s) == at_four


def test_activity_just_before_midnight_is_expired_at_midnight() -> None:
    midnight = utc("2024-05-05T00:00")
    assert ResetPolicy(daily_hour=0).due(midnight - 2.4e-7) == midnight


@pytest.mark.parametrize(
    ("zone", "hour", "since", "expected"),
    [
        ("Europe/Berlin", 2, "2024-03-30T12:00", "2024-03-31 03:00"),
        ("America/New_York", 2, "2024-03-09T12:00", "2024-03-10 03:00"),
        ("Australia/Lord_Howe", 2, "2024-10-05T10:00", "2024-10-06 02:30"),
        ("Africa/Cairo", 0, "2024-04-25T12:00", "2024-04-26 01:00"),
        ("Antarctica/Troll", 1, "2024-03-30T12:00", "2024-03-31 03:00"),
        ("Antarctica/Troll", 2, "2024-03-30T12:00", "2024-03-31 03:00"),
    ],
)
def test_an_occurrence_in_a_gap_is_at_the_end_of_the_gap(zone: str, hour: int, since: str, expected: str) -> None:
    due = ResetPolicy(daily_hour=hour, zone=zone).due(utc(since))
    assert due is not None
    assert shown(due, zone) == expected
    assert shown(due - 1, zone) < f"{expected[:10]} {hour:02}:00"


@pytest.mark.parametrize(
    ("zone", "end", "reading"),
    [
        ("America/St_Johns", -1096921748.0, "1935-03-30 00:00:52"),
        ("Africa/Monrovia", 63593070.0, "1972-01-07 00:44:30"),
    ],
)
def test_a_gap_may_end_at_any_second(zone: str, end: float, reading: str) -> None:
    assert ResetPolicy(daily_hour=0, zone=zone).due(end - HOUR_S) == end
    assert f"{datetime.fromtimestamp(end, ZoneInfo(zone)).replace(tzinfo=None)}" == reading


@pytest.mark.parametrize(
    ("zone", "hour", "first"),
    [
        ("Europe/Berlin", 2, "2024-10-27T00:00"),
        ("America/New_York", 1, "2024-11-03T05:00"),
        ("America/St_Johns", 1, "2024-11-03T03:30"),
        ("Antarctica/Troll", 1, "2024-10-26T23:00"),
    ],
)
def test_an_occurrence_in_an_overlap_is_the_first_of_two(zone: str, hour: int, first: str) -> None:
    policy = ResetPolicy(daily_hour=hour, zone=zone)
    assert policy.due(utc(first) - 1) == utc(first)
    # The hour occurs a second time, but this date already had its reset.
    following = policy.due(utc(first))
    assert following is not None
    assert following - utc(first) > DAY_S


def test_a_clock_set_back_over_midnight_gives_no_second_midnight() -> None:
    # St John's changed at 00:01 until 2011, so 2010-11-07 began twice.
    policy = ResetPolicy(daily_hour=0, zone="America/St_Johns")
    first = utc("2010-11-07T02:30")
    assert policy.due(first - 1) == first
    assert shown(first + 60, "America/St_Johns") == "2010-11-06 23:01"
    assert policy.due(first + 60) == utc("2010-11-08T03:30")


def test_a_clock_set_back_a_whole_day_gives_no_date_a_second_occurrence() -> None:
    policy = ResetPolicy(daily_hour=10, zone="America/Sitka")
    found = occurrences(policy, utc("1867-10-15T00:00"), utc("1867-10-23T00:00"))
    dates = [shown(at, "America/Sitka")[:10] for at in found]
    assert dates == sorted(set(dates))
    assert max(later - earlier for earlier, later in zip(found, found[1:], strict=False)) > 1.9 * DAY_S


def test_a_gap_up_to_midnight_keeps_the_occurrence_of_the_date_before() -> None:
    # Nuuk goes from Saturday 23:00 to Sunday 00:00: Saturday exists, its 23:00 does not.
    policy = ResetPolicy(daily_hour=23, zone="America/Nuuk")
    found = [shown(at, "America/Nuuk") for at in occurrences(policy, utc("2025-03-28T12:00"), utc("2025-03-31T12:00"))]
    assert found == ["2025-03-28 23:00", "2025-03-30 00:00", "2025-03-30 23:00"]


@pytest.mark.parametrize("hour", range(24))
def test_a_date_that_was_skipped_has_no_occurrence(hour: int) -> None:
    policy = ResetPolicy(daily_hour=hour, zone="Pacific/Apia")
    found = [
        shown(at, "Pacific/Apia") for at in occurrences(policy, utc("2011-12-29T09:59:59"), utc("2012-01-02T10:00"))
    ]
    assert found == [f"{day} {hour:02}:00" for day in ("2011-12-29", "2011-12-31", "2012-01-01", "2012-01-02")]


@pytest.mark.parametrize("hour", [0, 1, 2, 3, 12, 23])
@pytest.mark.parametrize(
    "zone",
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "America/St_Johns",
        "Asia/Kathmandu",
        "Africa/Casablanca",
        "Pacific/Kiritimati",
    ],
)
@pytest.mark.parametrize("year", [2010, 2024, 2060])
def test_a_year_has_exactly_one_occurrence_per_local_date(zone: str, hour: int, year: int) -> None:
    start = datetime(year, 1, 1, tzinfo=ZoneInfo(zone)).timestamp()
    end = datetime(year + 1, 1, 1, tzinfo=ZoneInfo(zone)).timestamp()
    found = occurrences(ResetPolicy(daily_hour=hour, zone=zone), start - 1, end)
    days = (date(year + 1, 1, 1) - date(year, 1, 1)).days
    assert [shown(at, zone)[:10] for at in found] == [f"{date(year, 1, 1) + timedelta(n)}" for n in range(days)]


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_extreme_instants_do_not_raise(zone: str) -> None:
    policy = ResetPolicy(daily_hour=4, zone=zone)
    for late in (2.6e11, 1e18, 1e308, float("inf")):
        assert policy.due(late) is None
        assert policy.expired(late, late) is None
    for early in (-6.3e10, -1e18, -1e308, float("-inf")):
        due = policy.due(early)
        assert due is not None
        assert due > early
    assert policy.expired(-1e18, 0.0) is ExpiryReason.DAILY
    last_days = [policy.due(utc("9999-12-24T00:00") + hours * HOUR_S) for hours in range(24 * 7)]
    assert last_days[0] is not None
    assert last_days[-1] is None


# --- against a simulation that reads the clock every minute ---

# Days with unusual clock changes; the last is any day.
ODD_DAYS = [
    ("Europe/Berlin", "2024-03-31"),
    ("Europe/Berlin", "2024-10-27"),
    ("America/New_York", "2024-03-10"),
    ("America/New_York", "2024-11-03"),
    ("Australia/Lord_Howe", "2024-04-07"),
    ("Australia/Lord_Howe", "2024-10-06"),
    ("America/St_Johns", "2010-03-14"),
    ("America/St_Johns", "2010-11-07"),
    ("America/Nuuk", "2025-03-30"),
    ("America/Nuuk", "2025-10-26"),
    ("Antarctica/Troll", "2024-03-31"),
    ("Antarctica/Troll", "2024-10-27"),
    ("Pacific/Apia", "2011-12-30"),
    ("Asia/Pyongyang", "2018-05-05"),
    ("America/Caracas", "2016-05-01"),
    ("UTC", "2024-02-29"),
]
HOURS = st.integers(0, 23)


def due_by_reading_the_clock(last_active: float, hour: int, zone: str) -> float:
    """Find the deadline by reading the local clock every minute for a week."""
    tz = ZoneInfo(zone)
    start = last_active // 60 * 60 - 3 * DAY_S
    readings = [(start + 60 * n, datetime.fromtimestamp(start + 60 * n, tz)) for n in range(7 * 24 * 60)]
    walls = [(at, reading.replace(tzinfo=None)) for at, reading in readings]
    firsts: list[float] = []
    for day in sorted({wall.date() for _, wall in walls})[:-1]:
        target = datetime.combine(day, time(hour))
        firsts.append(next(at for at, wall in walls if wall >= target))
    return min(at for at in firsts if at > last_active)


@settings(deadline=None, max_examples=100)
@given(odd=st.sampled_from(ODD_DAYS), minutes=st.integers(-2 * 1440, 2 * 1440), second=st.floats(0, 59.9), hour=HOURS)
@example(odd=("Europe/Berlin", "2024-03-31"), minutes=0, second=0.0, hour=2)
@example(odd=("Europe/Berlin", "2024-10-27"), minutes=0, second=0.0, hour=2)
@example(odd=("Pacific/Apia", "2011-12-30"), minutes=0, second=0.0, hour=0)
@example(odd=("America/Nuuk", "2025-03-30"), minutes=0, second=0.0, hour=23)
def test_daily_matches_the_simulation_that_reads_every_minute(
    odd: tuple[str, str], minutes: int, second: float, hour: int
) -> None:
    zone, day = odd
    last_active = utc(f"{day}T00:00") + 60 * minutes + second
    assert ResetPolicy(daily_hour=hour, zone=zone).due(last_active) == due_by_reading_the_clock(last_active, hour, zone)


# --- properties ---

ZONES = st.sampled_from(sorted({zone for zone, _ in ODD_DAYS} | {"Pacific/Chatham", "America/Sitka", "Asia/Manila"}))
POLICIES = st.builds(
    ResetPolicy,
    idle_s=st.none() | st.floats(0.001, 1e7),
    daily_hour=st.none() | HOURS,
    zone=ZONES,
)
INSTANTS = st.floats(-4e9, 4e9) | st.floats(1.2e9, 1.8e9) | st.floats(allow_nan=False)


@given(policy=POLICIES, one=INSTANTS, other=INSTANTS)
def test_later_activity_is_never_due_earlier(policy: ResetPolicy, one: float, other: float) -> None:
    earlier, later = sorted((one, other))
    never = float("inf")
    first, second = policy.due(earlier), policy.due(later)
    assert (never if first is None else first) <= (never if second is None else second)


@given(policy=POLICIES, last_active=INSTANTS, at=INSTANTS)
def test_a_session_is_expired_exactly_from_its_deadline_on(policy: ResetPolicy, last_active: float, at: float) -> None:
    due = policy.due(last_active)
    assert (policy.expired(last_active, at) is not None) == (due is not None and at >= due)
    if due is not None:
        assert policy.expired(last_active, due) is not None


@given(policy=POLICIES, last_active=INSTANTS)
def test_both_rules_together_give_the_earlier_deadline(policy: ResetPolicy, last_active: float) -> None:
    idle = ResetPolicy(idle_s=policy.idle_s).due(last_active)
    daily = ResetPolicy(daily_hour=policy.daily_hour, zone=policy.zone).due(last_active)
    deadlines = [deadline for deadline in (daily, idle) if deadline is not None]
    assert policy.due(last_active) == min(deadlines, default=None)
    if deadlines:
        reason = ExpiryReason.DAILY if min(deadlines) == daily else ExpiryReason.IDLE
        assert policy.expired(last_active, min(deadlines)) is reason


@given(hour=HOURS, zone=ZONES, last_active=st.floats(-4e9, 4e9))
def test_daily_is_due_after_the_activity_and_within_about_two_days(hour: int, zone: str, last_active: float) -> None:
    due = ResetPolicy(daily_hour=hour, zone=zone).due(last_active)
    assert due is not None
    assert 0 < due - last_active <= 2 * DAY_S + 3 * HOUR_S


# --- invalid values ---


@pytest.mark.parametrize("idle_s", [0, -1, float("inf"), float("nan")])
def test_an_invalid_idle_time_is_refused(idle_s: float) -> None:
    with pytest.raises(BadPolicy, match="positive number of seconds"):
        ResetPolicy(idle_s=idle_s)


@pytest.mark.parametrize("hour", [-1, 24, 4.5])
def test_an_invalid_hour_is_refused(hour: int) -> None:
    with pytest.raises(BadPolicy, match="from 0 to 23"):
        ResetPolicy(daily_hour=hour)


@pytest.mark.parametrize("zone", ["", "Europe", "Europe/Berln", "../etc/passwd", "/etc/localtime", "a\0b", "x" * 5000])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(BadPolicy, match="IANA name"):
        ResetPolicy(zone=zone)


# --- the policy of a key ---

DEFAULT, PLATFORM, CHAT_TYPE = ResetPolicy(idle_s=1), ResetPolicy(idle_s=2), ResetPolicy(idle_s=3)


@pytest.mark.parametrize(
    ("platform", "chat_type", "expected"),
    [
        ("telegram", ChatType.GROUP, PLATFORM),
        ("telegram", ChatType.DM, PLATFORM),
        ("matrix", ChatType.GROUP, CHAT_TYPE),
        ("matrix", ChatType.DM, DEFAULT),
    ],
)
def test_platform_wins_over_chat_type_which_wins_over_default(
    platform: str, chat_type: ChatType, expected: ResetPolicy
) -> None:
    policies = ResetPolicies(DEFAULT, by_platform={"telegram": PLATFORM}, by_chat_type={ChatType.GROUP: CHAT_TYPE})
    assert policies.of(SessionKey("main", platform, chat_type, "42")) is expected


def test_an_override_may_switch_resets_off() -> None:
    policies = ResetPolicies(DEFAULT, by_platform={"cli": ResetPolicy()})
    assert policies.of(SessionKey("main", "cli", ChatType.DM, "tty")).due(0.0) is None


def test_without_overrides_every_key_has_the_default() -> None:
    assert ResetPolicies(DEFAULT).of(SessionKey("main", "cli", ChatType.DM, "tty")) is DEFAULT
