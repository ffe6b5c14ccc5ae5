"""Limits of the request bodies in memory: for the owner, for guests, and for senders that nobody has authenticated yet.

Each of the three has bytes of its own, so that none of them can shut out another.
"""

from __future__ import annotations

from everthread.web.client_address import slowed_network
from everthread.web.errors import HttpError

BODIES_BYTES_MAX = 64 * 1024 * 1024
SHARES = 4
"""The owner and the unauthenticated senders have one share each, guests have the rest, one guest at most one share."""
NETWORKS = 8
"""One network has at most this part of the bytes of unauthenticated senders."""
RETRY_AFTER_S = 5
_RETRY = {"Connection": "close", "Retry-After": str(RETRY_AFTER_S)}


class BodyPool:
    """Counts the bytes that a group of holders has, in total and for each of them."""

    def __init__(self, bytes_max: int, each_max: int) -> None:
        self.total_max, self.each_max = bytes_max, each_max
        self.total = 0
        self._by_holder: dict[str, int] = {}

    def add(self, holder: str, count: int) -> None:
        """Count bytes that are about to be held. Raise `HttpError` if they exceed a limit; then none are counted."""
        of_holder = self._by_holder.get(holder, 0) + count
        if of_holder > self.each_max:
            text = "The bodies that you are sending are too large together. Send fewer at a time."
            raise HttpError(429, text, "too_many_bytes", _RETRY)
        if self.total + count > self.total_max:
            raise HttpError(503, "Too many bodies are being received. Try again later.", "too_many_bytes", _RETRY)
        self.total += count
        self._by_holder[holder] = of_holder

    def remove(self, holder: str, count: int) -> None:
        """Stop counting bytes that were added."""
        self.total -= count
        if left := self._by_holder[holder] - count:
            self._by_holder[holder] = left
        else:
            del self._by_holder[holder]


class BodyBudget:
    """Counts the bytes of all request bodies that the server holds."""

    def __init__(self, owner: str, total_max: int = BODIES_BYTES_MAX) -> None:
        share = total_max // SHARES
        self._owner_name = owner
        self.owner = BodyPool(share, share)
        self.guests = BodyPool(total_max - 2 * share, share)
        self.unsigned = BodyPool(share, share // NETWORKS)
        """Bodies of webhooks, whose signature can be verified only when they are complete."""

    def pool_of(self, owner: str) -> BodyPool:
        return self.owner if owner == self._owner_name else self.guests

    @property
    def is_empty(self) -> bool:
        return not (self.owner.total or self.guests.total or self.unsigned.total)


class HeldBody:
    """The share of one request in the budget, until `release`."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget = budget
        # One IPv6 client has a whole /64.
        self._pool, self._holder = budget.unsigned, slowed_network(address)
        self._count = 0

    def count_for(self, owner: str) -> None:
        """Count the bytes for an authenticated owner, not for an address, which others may share."""
        self.release()
        self._pool, self._holder = self._budget.pool_of(owner), owner

    def add(self, count: int) -> None:
        """Count bytes of the body. Raise `HttpError` if there is no room for them."""
        if count:
            self._pool.add(self._holder, count)
            self._count += count

    def release(self) -> None:
        """Give the bytes back. Later calls have no effect."""
        if self._count:
            self._pool.remove(self._holder, self._count)
        self._count = 0
