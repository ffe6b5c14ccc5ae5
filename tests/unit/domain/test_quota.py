"""Quotas of a person: the numbers that are still allowed, and the answers."""

from __future__ import annotations

import pytest

from everthread.domain.errors import QuotaReached, StorageQuotaReached
from everthread.domain.quota import Quotas

QUOTAS = Quotas("me", sessions=2, forks_per_day=1, media_bytes=100, schedules=1, stored_bytes=1000)


def test_a_quota_may_be_used_up_but_not_exceeded() -> None:
    QUOTAS.check_sessions(1)
    QUOTAS.check_forks(0)
    QUOTAS.check_media(100)
    QUOTAS.check_stored(999)
    for check, count in ((QUOTAS.check_sessions, 2), (QUOTAS.check_forks, 1)):
        with pytest.raises(QuotaReached, match="allowed for each person") as refused:
            check(count)
        assert not isinstance(refused.value, StorageQuotaReached)
    for check, count in ((QUOTAS.check_media, 101), (QUOTAS.check_stored, 1000)):
        with pytest.raises(StorageQuotaReached, match="allowed for each person"):
            check(count)


def test_the_answer_says_what_to_do() -> None:
    with pytest.raises(QuotaReached, match="you have 2 conversations, and 2 are allowed .* continue one of yours"):
        QUOTAS.check_sessions(2)
    with pytest.raises(QuotaReached, match="try again tomorrow"):
        QUOTAS.check_forks(5)
