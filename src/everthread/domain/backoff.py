"""Exponential backoff between attempts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from msgspec import Struct

_EXPONENT_MAX = 63
"""Keeps the power a finite float; every delay has reached its maximum long before."""


class Backoff(Struct, frozen=True):
    """A delay that is multiplied by `factor` with each failure in a row, from `first_s` up to `max_s`."""

    first_s: float
    max_s: float
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """Return the delay after `failures` failures in a row, from 1."""
        return min(self.first_s * self.factor ** min(failures - 1, _EXPONENT_MAX), self.max_s)

    def jittered_s(self, failures: int, random: float) -> float:
        """Return half the delay plus the share `random` (0 to 1) of the other half.

        Jitter keeps clients from retrying in step.
        """
        return self.delay_s(failures) * (0.5 + random / 2)

    def delays(self) -> Iterator[float]:
        """Yield the delays after the first, the second and each later failure, infinitely."""
        return map(self.delay_s, count(1))
