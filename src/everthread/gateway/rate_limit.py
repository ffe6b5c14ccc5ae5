"""Rate limit of messages per person: a token bucket."""

from __future__ import annotations

import math

from msgspec import Struct

from everthread.domain.text_format import pluralize

MINUTE_S = 60.0
KEPT_MAX = 10_000
"""Drop the full buckets when there are more than this many."""
TOO_MANY = "Too many messages: this one was not stored. Write again in {seconds}."


class _Bucket(Struct):
    left: float
    at: float
    told_at: float | None = None


class RateLimiter:
    """Holds one bucket per owner, in memory only: a bucket is full again after a minute anyway."""

    def __init__(self, messages_per_minute: int) -> None:
        self._size = float(messages_per_minute)
        self._per_s = messages_per_minute / MINUTE_S
        self._buckets: dict[str, _Bucket] = {}
        self._kept_max = KEPT_MAX

    def refusal(self, owner: str, now: float) -> str | None:
        """Count one message; return `None` if it is within the limit, otherwise the reply.

        `now` is elapsed time. The reply is empty for a minute after the owner was told.
        """
        bucket = self._buckets.get(owner)
        if bucket is None:
            self._drop_full(now)
            bucket = self._buckets[owner] = _Bucket(self._size, now)
        bucket.left = min(bucket.left + (now - bucket.at) * self._per_s, self._size)
        bucket.at = now
        # Tolerate rounding errors: the refills add up to a little less than they should.
        if bucket.left > 1 - 1e-6:
            bucket.left -= 1
            return None
        if bucket.told_at is not None and now - bucket.told_at < MINUTE_S:
            return ""
        bucket.told_at = now
        return TOO_MANY.format(seconds=pluralize(self.wait_s(owner), "second"))

    def wait_s(self, owner: str) -> int:
        """Return the seconds until one more message is within the limit."""
        left = self._buckets[owner].left if owner in self._buckets else 1.0
        return max(math.ceil((1 - left) / self._per_s - 1e-6), 1)

    def refund(self, owner: str) -> None:
        """Return the token of a message that did not count."""
        if (bucket := self._buckets.get(owner)) is not None:
            bucket.left = min(bucket.left + 1, self._size)

    def _drop_full(self, now: float) -> None:
        if len(self._buckets) >= self._kept_max:
            self._buckets = {owner: bucket for owner, bucket in self._buckets.items() if now - bucket.at < MINUTE_S}
            # Do not scan again for each new owner while all buckets are in use.
            self._kept_max = max(KEPT_MAX, 2 * len(self._buckets))
