"""Backoff: the delay grows, never beyond its maximum, and jitter takes off at most half of it."""

from itertools import islice, pairwise

from hypothesis import given
from hypothesis import strategies as st

from everthread.domain.backoff import Backoff

SECONDS = st.floats(min_value=0.001, max_value=3600.0)
BACKOFFS = st.builds(Backoff, SECONDS, SECONDS, st.floats(min_value=1.0, max_value=10.0))
FAILURES = st.integers(min_value=1, max_value=10_000)


@given(BACKOFFS, FAILURES)
def test_a_delay_is_between_the_first_delay_and_the_maximum(backoff: Backoff, failures: int) -> None:
    assert min(backoff.first_s, backoff.max_s) <= backoff.delay_s(failures) <= backoff.max_s


@given(BACKOFFS, FAILURES)
def test_one_more_failure_multiplies_the_delay_by_the_factor_up_to_the_maximum(backoff: Backoff, failures: int) -> None:
    before, after = backoff.delay_s(failures), backoff.delay_s(failures + 1)
    assert before <= after
    if failures <= 20:
        expected = min(backoff.first_s * backoff.factor**failures, backoff.max_s)
        assert abs(after - expected) <= 1e-9 * expected


@given(BACKOFFS, FAILURES, st.floats(min_value=0.0, max_value=1.0))
def test_jitter_takes_off_at_most_half_of_the_delay(backoff: Backoff, failures: int, random: float) -> None:
    full = backoff.delay_s(failures)
    assert full / 2 <= backoff.jittered_s(failures, random) <= full


@given(BACKOFFS)
def test_delays_begin_with_the_first_failure_and_never_get_shorter(backoff: Backoff) -> None:
    some = list(islice(backoff.delays(), 100))
    assert some[0] == min(backoff.first_s, backoff.max_s)
    assert all(before <= after for before, after in pairwise(some))


def test_delays_double_by_default() -> None:
    assert list(islice(Backoff(1.0, 5.0).delays(), 4)) == [1.0, 2.0, 4.0, 5.0]
