"""Circuit breaker: stop calling a service that keeps failing, and try it again later."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.clock_rules import AHEAD_S_MAX, is_waiting


class CircuitBreaker(Struct, frozen=True):
    """The state of one breaker. A new breaker is closed: calls pass. Replace it with a new one after a success."""

    failures: int = 0
    """Failures in a row."""
    open_until: float = 0.0
    """The time before which calls are refused; 0.0 if the breaker never opened. A trial call is allowed afterwards."""

    def is_open(self, now: float) -> bool:
        """Return True while calls are refused."""
        return is_waiting(self.open_until, now)

    def after_failure(self, now: float, open_s: float, *, failures_max: int = 1) -> CircuitBreaker:
        """Count a failure, and open for `open_s` after `failures_max` failures in a row."""
        breaker = CircuitBreaker(self.failures + 1, self.open_until)
        return breaker.opened(now, open_s) if breaker.failures >= failures_max else breaker

    def opened(self, now: float, open_s: float) -> CircuitBreaker:
        """Open for `open_s`, but no longer than `AHEAD_S_MAX`, independent of the number of failures."""
        return CircuitBreaker(self.failures, now + min(open_s, AHEAD_S_MAX))
