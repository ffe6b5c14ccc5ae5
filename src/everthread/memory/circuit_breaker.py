"""Breakers of memory providers, as far as this process knows them."""

from __future__ import annotations

from collections.abc import Iterable

from everthread.domain.circuit_breaker import CircuitBreaker
from everthread.store.cursors import ProviderRow

RECALL_PAUSE_S = 60.0
FAILURES_MAX = 3

Asked = tuple[str, bool]
"""A provider, and True once it is initialised: a slow start says nothing about later calls."""


class ProviderBreakers:
    """Cache of the delivery breakers in the store.

    Only a successful delivery closes a breaker early, so that an open one need not be read again before its time:
    during an outage, turns read nothing because of the provider.
    """

    def __init__(self) -> None:
        self._breakers: dict[str, CircuitBreaker] = {}

    def open_until(self, provider: str, now: float) -> float | None:
        """Return the time until which calls are refused; None if only the store knows."""
        breaker = self._breakers.get(provider, CircuitBreaker())
        return breaker.open_until if breaker.is_open(now) else None

    def update(self, rows: Iterable[ProviderRow]) -> None:
        """Take over the state in the store."""
        self._breakers.update((row.name, CircuitBreaker(row.failures, row.open_until)) for row in rows)

    def close(self, provider: str) -> None:
        """Close the breaker after a successful delivery."""
        self._breakers.pop(provider, None)


class RecallBreakers:
    """Pause recall from providers that miss the deadline, or fail several times in a row.

    So not every turn waits for them. After the pause one turn tries again; the others do not wait for its result. Times
    are elapsed times.
    """

    def __init__(self) -> None:
        self._breakers: dict[Asked, CircuitBreaker] = {}

    def may_ask(self, asked: Asked, now: float) -> bool:
        """Return False during a pause. The first call after a pause is a trial and starts another pause."""
        breaker = self._breakers.get(asked, CircuitBreaker())
        if breaker.is_open(now):
            return False
        if breaker.open_until:
            self._breakers[asked] = breaker.opened(now, RECALL_PAUSE_S)
        return True

    def record_timeout(self, asked: Asked, now: float) -> None:
        """Pause a provider that missed the deadline."""
        self._breakers[asked] = self._breakers.get(asked, CircuitBreaker()).opened(now, RECALL_PAUSE_S)

    def record_failure(self, asked: Asked, now: float) -> None:
        """Count a failure; a single one does not pause the provider."""
        breaker = self._breakers.get(asked, CircuitBreaker())
        self._breakers[asked] = breaker.after_failure(now, RECALL_PAUSE_S, failures_max=FAILURES_MAX)

    def record_success(self, asked: Asked) -> None:
        """End the pause and forget earlier failures."""
        self._breakers.pop(asked, None)
