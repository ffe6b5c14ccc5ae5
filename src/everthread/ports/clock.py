"""The clock port. Its implementation is tested in tests/unit/bootstrap/test_clock.py."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...
