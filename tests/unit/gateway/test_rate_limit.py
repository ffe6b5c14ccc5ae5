"""The token bucket of each owner."""

from __future__ import annotations

import pytest

from everthread.gateway import rate_limit as rates
from everthread.gateway.rate_limit import RateLimiter


def test_messages_over_the_limit_are_refused_with_one_notice_a_minute() -> None:
    limits = RateLimiter(6)
    assert [limits.refusal("ann", 0.0) for _ in range(6)] == [None] * 6
    assert limits.refusal("bea", 0.0) is None
    assert "10 seconds" in (limits.refusal("ann", 0.0) or "")
    assert limits.refusal("ann", 5.0) == ""
    assert limits.refusal("ann", 10.0) is None
    assert limits.refusal("ann", 10.0) == ""
    assert limits.refusal("ann", 20.0) is None
    for second in (30.0, 40.0, 50.0, 60.0):
        assert limits.refusal("ann", second) is None
    assert "9 seconds" in (limits.refusal("ann", 61.0) or "")
    assert [limits.refusal("ann", 1000.0) for _ in range(9)].count(None) == 6, "at most one minute accumulates"


def test_commands_that_stop_work_over_the_limit_and_have_one_of_their_own() -> None:
    limits = RateLimiter(2)
    assert [limits.refusal("ann", 0.0) for _ in range(3)].count(None) == 2
    assert [limits.command_refusal("ann", 0.0) for _ in range(30)].count(None) == 20
    assert limits.wait_s(rates.commands_bucket("ann")) == 3
    assert limits.wait_s("ann") == 30
    limits.refund(rates.commands_bucket("ann"))
    assert limits.command_refusal("ann", 0.0) is None
    assert limits.command_refusal("ann", 0.0) == ""


def test_full_buckets_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "KEPT_MAX", 10)
    limits = RateLimiter(1)
    for number in range(10):
        assert limits.refusal(str(number), 0.0) is None
    assert limits.refusal("late", 61.0) is None
    assert len(limits._buckets) == 1  # noqa: SLF001 - what it keeps is what is looked at
    assert limits.refusal("late", 61.0)
