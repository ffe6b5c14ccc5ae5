"""The clock port. Its implementation is tested in tests/unit/bootstrap/test_clock.py.

Compare times that are stored, or shown to people, with `now`, by the rules of `domain.clock_rules`. Measure everything
that lives in one process with `elapsed`: it can't be set.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return seconds since the epoch, UTC, by the wall clock, which may be wrong and may be set."""
        ...

    def elapsed(self) -> float:
        """Return seconds since some instant. They never decrease, and count while the machine is suspended."""
        ...

    async def sleep(self, seconds: float) -> None: ...
