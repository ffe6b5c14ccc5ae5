"""Time and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Clock(Protocol):
    """The only source of time, so that tests can set it."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Embedder(Protocol):
    @property
    def dimensions(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...
