"""How much one person may write: so many messages a minute, as many at once."""

from __future__ import annotations

import math

from msgspec import Struct

from everthread.domain.text_format import counted

MINUTE_S = 60.0
KEPT_MAX = 10_000
"""So many people are remembered before those who have been quiet are let go of."""
TOO_MANY = "That was too much at once, and is not kept; write again in {seconds}."


class _Bucket(Struct):
    left: float
    at: float
    told_at: float | None = None


class Rates:
    """Known to this process only: who has been quiet for a minute has all there is again anyway."""

    def __init__(self, messages_per_minute: int) -> None:
        self._size = float(messages_per_minute)
        self._per_s = messages_per_minute / MINUTE_S
        self._buckets: dict[str, _Bucket] = {}
        self._kept_max = KEPT_MAX

    def refusal(self, owner: str, now: float) -> str | None:
        """`None` if one more message of theirs is taken; else what they are told, which is nothing for a minute after
        they were."""
        bucket = self._buckets.get(owner)
        if bucket is None:
            self._let_go(now)
            bucket = self._buckets[owner] = _Bucket(self._size, now)
        # A clock that was put back gives nothing, and takes nothing.
        bucket.left = min(bucket.left + max(now - bucket.at, 0.0) * self._per_s, self._size)
        bucket.at = now
        # A hair's breadth is no reason to wait: what was waited for adds up to a little less than it should.
        if bucket.left > 1 - 1e-6:
            bucket.left -= 1
            return None
        if bucket.told_at is not None and 0 <= now - bucket.told_at < MINUTE_S:
            return ""
        bucket.told_at = now
        return TOO_MANY.format(seconds=counted(self.wait_s(owner), "second"))

    def wait_s(self, owner: str) -> int:
        """After how many seconds one more is taken of somebody who was refused just now."""
        left = self._buckets[owner].left if owner in self._buckets else 1.0
        return max(math.ceil((1 - left) / self._per_s - 1e-6), 1)

    def give_back(self, owner: str) -> None:
        """The message that was just taken was none."""
        if (bucket := self._buckets.get(owner)) is not None:
            bucket.left = min(bucket.left + 1, self._size)

    def _let_go(self, now: float) -> None:
        if len(self._buckets) >= self._kept_max:
            self._buckets = {
                owner: bucket for owner, bucket in self._buckets.items() if 0 <= now - bucket.at < MINUTE_S
            }
            # Not to be gone through again for each newcomer while everybody writes.
            self._kept_max = max(KEPT_MAX, 2 * len(self._buckets))
