"""Rate limit of messages per person, and of deliveries per webhook: token buckets."""

from __future__ import annotations

import math

from msgspec import Struct

from everthread.domain.text_format import pluralize

MINUTE_S = 60.0
COMMANDS_FACTOR = 10
"""`SAFETY_COMMANDS` have a bucket of this many times the size: they must work when all others are refused."""
KEPT_MAX = 10_000
"""Drop the full buckets when there are more than this many."""
TOO_MANY = "Too many messages: this one was not stored. Write again in {seconds}."


class _Bucket(Struct):
    size: float
    left: float
    at: float
    told_at: float | None = None


def hook_bucket(name: str) -> str:
    """Return the bucket of a webhook: its deliveries must not use up the messages of a person."""
    return f"hook:{name}"


def commands_bucket(owner: str) -> str:
    """Return the bucket of an owner's `SAFETY_COMMANDS`."""
    return f"commands:{owner}"


class RateLimiter:
    """Holds the buckets of owners and webhooks, in memory only: a bucket is full again after a minute anyway."""

    def __init__(self, messages_per_minute: int) -> None:
        self._size = float(messages_per_minute)
        self._buckets: dict[str, _Bucket] = {}
        self._kept_max = KEPT_MAX

    def refusal(self, name: str, now: float, *, size_factor: int = 1) -> str | None:
        """Count one message in a bucket; return `None` if it is within the limit, otherwise the reply.

        `now` is elapsed time. The reply is empty for a minute after the sender was told.
        """
        bucket = self._buckets.get(name)
        if bucket is None:
            self._drop_full(now)
            size = self._size * size_factor
            bucket = self._buckets[name] = _Bucket(size, size, now)
        bucket.left = min(bucket.left + (now - bucket.at) * bucket.size / MINUTE_S, bucket.size)
        bucket.at = now
        # Tolerate rounding errors: the refills add up to a little less than they should.
        if bucket.left > 1 - 1e-6:
            bucket.left -= 1
            return None
        if bucket.told_at is not None and now - bucket.told_at < MINUTE_S:
            return ""
        bucket.told_at = now
        return TOO_MANY.format(seconds=pluralize(self.wait_s(name), "second"))

    def command_refusal(self, owner: str, now: float) -> str | None:
        """Count one of `SAFETY_COMMANDS`, like `refusal`."""
        return self.refusal(commands_bucket(owner), now, size_factor=COMMANDS_FACTOR)

    def wait_s(self, name: str) -> int:
        """Return the seconds until one more message is within the limit."""
        bucket = self._buckets.get(name)
        if bucket is None:
            return 1
        return max(math.ceil((1 - bucket.left) * MINUTE_S / bucket.size - 1e-6), 1)

    def refund(self, name: str) -> None:
        """Return the token of a message that did not count."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.left = min(bucket.left + 1, bucket.size)

    def _drop_full(self, now: float) -> None:
        if len(self._buckets) >= self._kept_max:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if now - bucket.at < MINUTE_S}
            # Do not scan again for each new bucket while all buckets are in use.
            self._kept_max = max(KEPT_MAX, 2 * len(self._buckets))
