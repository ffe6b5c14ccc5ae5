"""Lanes: FIFOs that one worker drains at a time, across processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from everthread.domain.model import Lease

Drain = Callable[[Lease], Awaitable[float | None]]
"""Does what is due now under the lease, without waiting for anything slow; returns when the next is due."""


class Lanes(Protocol):
    @property
    def holder(self) -> str:
        """The name of this process among all that share the store."""
        ...

    def serve(self, name: str, drain: Drain) -> None:
        """Have `drain` called whenever lanes of this kind may have work and this process holds their lease."""
        ...

    def wake(self, name: str) -> None:
        """Lanes of this kind may have work now. Harmless when they have none."""
        ...

    async def run(self) -> None:
        """Hold leases and drain until cancelled; then give the leases back."""
        ...
