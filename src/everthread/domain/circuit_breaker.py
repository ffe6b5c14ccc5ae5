"""Circuit breaker: stop calling a service that keeps failing, and try it again later."""

from __future__ import annotations

from msgspec import Struct


class CircuitBreaker(Struct, frozen=True):
    """The state of one breaker. A new breaker is closed: calls pass. Replace it with a new one after a success."""

    failures: int = 0
    """Failures in a row."""
    open_until: float = 0.0
    """The time before which calls are refused; 0.0 if the breaker never opened. A trial call is allowed afterwards."""

    def is_open(self, now: float, open_s_max: float) -> bool:
        """Return True while calls are refused.

        If `open_until` is more than `open_s_max` ahead, the clock was set back, and the breaker counts as closed.
        """
        return now < self.open_until <= now + open_s_max

    def after_failure(self, now: float, open_s: float, *, failures_max: int = 1) -> CircuitBreaker:
        """Count a failure, and open for `open_s` after `failures_max` failures in a row."""
        failures = self.failures + 1
        return CircuitBreaker(failures, now + open_s if failures >= failures_max else self.open_until)

    def opened(self, now: float, open_s: float) -> CircuitBreaker:
        """Open for `open_s`, independent of the number of failures."""
        return CircuitBreaker(self.failures, now + open_s)
