"""Limits of the request bodies in memory: in total, per client address, and of those that nobody has signed for yet."""

from __future__ import annotations

from everthread.web.errors import HttpError

BODIES_BYTES_MAX = 64 * 1024 * 1024
ADDRESS_BYTES_MAX = 16 * 1024 * 1024
UNSIGNED_BYTES_MAX = 16 * 1024 * 1024
"""Bodies of webhooks, whose signature can be verified only when they are complete. Requests with a token have the
rest, so that strangers cannot shut them out."""
RETRY_AFTER_S = 5
_RETRY = {"Connection": "close", "Retry-After": str(RETRY_AFTER_S)}


class BodyBudget:
    """Counts the bytes of all request bodies that the server holds."""

    def __init__(
        self,
        total_max: int = BODIES_BYTES_MAX,
        address_max: int = ADDRESS_BYTES_MAX,
        unsigned_max: int = UNSIGNED_BYTES_MAX,
    ) -> None:
        self._total_max, self._address_max, self._unsigned_max = total_max, address_max, unsigned_max
        self._total = self._unsigned = 0
        self._by_address: dict[str, int] = {}

    def add(self, address: str, count: int, *, signed: bool) -> None:
        """Count bytes that are about to be held. Raise `HttpError` if they exceed a limit; then none are counted."""
        of_address = self._by_address.get(address, 0) + count
        if of_address > self._address_max:
            text = "The bodies that this address is sending are too large together. Send fewer at a time."
            raise HttpError(429, text, "too_many_bytes", _RETRY)
        if self._total + count > self._total_max or (not signed and self._unsigned + count > self._unsigned_max):
            raise HttpError(503, "Too many bodies are being received. Try again later.", "too_many_bytes", _RETRY)
        self._total += count
        self._unsigned += 0 if signed else count
        self._by_address[address] = of_address

    def remove(self, address: str, count: int, *, signed: bool) -> None:
        """Stop counting bytes that were added with the same arguments."""
        self._total -= count
        self._unsigned -= 0 if signed else count
        if left := self._by_address[address] - count:
            self._by_address[address] = left
        else:
            del self._by_address[address]

    @property
    def is_empty(self) -> bool:
        return not (self._total or self._unsigned or self._by_address)


class HeldBody:
    """The share of one request in the budget, until `release`."""

    def __init__(self, budget: BodyBudget, address: str) -> None:
        self._budget, self._address = budget, address
        self._signed = 0
        self._unsigned = 0

    def add(self, count: int, *, signed: bool) -> None:
        """Count bytes of the body. Raise `HttpError` if there is no room for them."""
        if not count:
            return
        self._budget.add(self._address, count, signed=signed)
        if signed:
            self._signed += count
        else:
            self._unsigned += count

    def release(self) -> None:
        """Give the bytes back. Later calls have no effect."""
        for count, signed in ((self._signed, True), (self._unsigned, False)):
            if count:
                self._budget.remove(self._address, count, signed=signed)
        self._signed = self._unsigned = 0
