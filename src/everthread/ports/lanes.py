"""Lanes: FIFO queues that one worker drains at a time, across processes.

Test an implementation with `everthread.testing.contracts.lanes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from everthread.domain.model import Lease

Drain = Callable[[Lease], Awaitable[float | None]]
"""Does the work that is due, without waiting for anything slow. Returns when the next work is due."""


class Lanes(Protocol):
    """Runs the drains of the lanes whose lease this process holds."""

    @property
    def holder(self) -> str:
        """The unique name of this process among those that share the store."""
        ...

    def serve(self, name: str, drain: Drain) -> None:
        """Call `drain` whenever the lane may have work and this process holds its lease."""
        ...

    def wake(self, name: str) -> None:
        """Drain the lane soon. Does no harm if it has no work."""
        ...

    def watch(self, work: Callable[[], Awaitable[None]]) -> None:
        """Call `work` soon after every commit of this or another process. It must not wait for anything slow."""
        ...

    async def run(self) -> None:
        """Hold leases and drain lanes until cancelled, then release the leases."""
        ...
