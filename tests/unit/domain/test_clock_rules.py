"""Stored times count up to five minutes ahead of the wall clock. tests/unit/test_wrong_clock.py has the users."""

from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.clock_rules import (
    AHEAD_S_MAX,
    EARLIEST_CREDIBLE,
    ClockWatch,
    credible_time,
    is_ahead,
    is_recent,
    is_waiting,
    latest_deadline,
)
from everthread.memory.delivery_results import Limits

NOW = 1_700_000_000.0
TIMES = st.integers(min_value=0, max_value=2**32).map(float)
SECONDS = st.integers(min_value=0, max_value=2**20).map(float)


@given(TIMES, SECONDS)
def test_a_time_counts_up_to_five_minutes_ahead(now: float, seconds: float) -> None:
    assert is_ahead(now + seconds, now) == (seconds > AHEAD_S_MAX == 300.0)
    assert credible_time(now - seconds, now) == now - seconds


@given(TIMES, SECONDS)
def test_an_event_in_the_future_counts_as_the_present_unless_the_clock_is_certainly_wrong(
    now: float, seconds: float
) -> None:
    counts = seconds <= AHEAD_S_MAX or now < EARLIEST_CREDIBLE
    assert credible_time(now + seconds, now) == (now + seconds if counts else now)


@given(TIMES, SECONDS, SECONDS)
def test_nothing_waits_for_a_deadline_that_is_past_or_too_far_away(now: float, seconds: float, wait_s: float) -> None:
    assert not is_waiting(now - seconds, now, wait_s)
    assert not is_waiting(latest_deadline(now, wait_s) + 1.0 + seconds, now, wait_s)
    assert is_waiting(now + 1.0 + min(seconds, wait_s), now, wait_s)


def test_the_waits_of_deliveries_are_short_enough() -> None:
    limits = Limits()
    assert max(limits.backoff_s_max, limits.breaker_s) <= AHEAD_S_MAX


def test_a_clock_is_not_trusted_until_it_is_accepted() -> None:
    watch = ClockWatch()
    assert watch.is_set_back(NOW, 5.0)
    assert watch.is_set_back(NOW, 5.0), "the first attempt to handle it may fail"
    watch.accept(NOW, 5.0)
    assert not watch.is_set_back(NOW, 5.0)


def test_time_that_passed_and_jumps_forward_are_no_step_back() -> None:
    watch = ClockWatch()
    watch.accept(NOW, 5.0)
    assert not watch.is_set_back(NOW + 86_400.0, 5.0 + 86_400.0)
    assert not watch.is_set_back(NOW + 9e7, 6.0 + 86_400.0)


def test_a_step_back_is_noticed_though_time_passed_meanwhile() -> None:
    watch = ClockWatch()
    watch.accept(NOW, 5.0)
    assert watch.is_set_back(NOW + 10.0, 5.0 + 86_400.0), "the clock was set back while the machine was suspended"
    watch.accept(NOW + 10.0, 5.0 + 86_400.0)
    assert not watch.is_set_back(NOW + 20.0, 15.0 + 86_400.0)


def test_small_steps_back_add_up() -> None:
    watch = ClockWatch()
    watch.accept(NOW, 0.0)
    found = [watch.is_set_back(NOW - 100.0 * step, 0.0) for step in range(1, 5)]
    assert found == [False, False, False, True]


def test_a_clock_that_was_ahead_for_a_while_was_set_back() -> None:
    watch = ClockWatch()
    watch.accept(NOW, 0.0)
    assert not watch.is_set_back(NOW + 3600.0, 1.0)
    assert watch.is_set_back(NOW, 2.0)


def test_a_claimed_time_must_be_recent_and_not_ahead() -> None:
    times = (NOW - 301, NOW - 300, NOW, NOW + 300, NOW + 301)
    assert [is_recent(at, NOW, 300.0) for at in times] == [False, True, True, True, False]
