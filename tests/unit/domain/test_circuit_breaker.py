"""Circuit breaker: opens after failures in a row, refuses calls for a time, and survives a clock that was set back."""

from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.domain.clock_rules import AHEAD_S_MAX

TIMES = st.floats(min_value=1.0, max_value=2e9)
SECONDS = st.floats(min_value=0.01, max_value=AHEAD_S_MAX)


@given(TIMES)
def test_a_new_breaker_is_closed(now: float) -> None:
    assert not CircuitBreaker().is_open(now)


@given(TIMES, SECONDS, st.integers(min_value=1, max_value=20))
def test_it_opens_with_the_last_allowed_failure_and_not_before(now: float, open_s: float, failures_max: int) -> None:
    breaker = CircuitBreaker()
    for count in range(1, failures_max + 1):
        assert not breaker.is_open(now)
        breaker = breaker.after_failure(now, open_s, failures_max=failures_max)
        assert breaker.failures == count
    assert breaker.open_until == now + open_s
    assert breaker.is_open(now)


@given(TIMES, SECONDS)
def test_calls_are_allowed_again_after_the_pause(now: float, open_s: float) -> None:
    breaker = CircuitBreaker().opened(now, open_s)
    assert not breaker.is_open(breaker.open_until)


@given(TIMES, SECONDS)
def test_a_failed_trial_opens_it_again(now: float, open_s: float) -> None:
    breaker = CircuitBreaker(failures=3, open_until=now).after_failure(now, open_s, failures_max=3)
    assert breaker == CircuitBreaker(4, now + open_s)


@given(TIMES, SECONDS, st.floats(min_value=AHEAD_S_MAX, max_value=1e6))
def test_a_clock_that_was_set_back_does_not_keep_it_open(now: float, open_s: float, back_s: float) -> None:
    breaker = CircuitBreaker().opened(now, open_s)
    assert not breaker.is_open(now - back_s)


def test_it_opens_for_no_longer_than_the_clock_rules_allow() -> None:
    breaker = CircuitBreaker().after_failure(100.0, 3600.0)
    assert breaker.is_open(100.0)
    assert not breaker.is_open(100.0 + AHEAD_S_MAX)


@given(TIMES, SECONDS, st.integers(min_value=0, max_value=20))
def test_opening_it_counts_no_failure(now: float, open_s: float, failures: int) -> None:
    assert CircuitBreaker(failures).opened(now, open_s) == CircuitBreaker(failures, now + open_s)
