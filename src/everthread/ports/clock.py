"""The ports of the agent and the front ends, so that what is built on the core finds its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Embedder(Protocol):
    @property
    def dimensions(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...
