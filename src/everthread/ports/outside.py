"""The ports of the agent and the front ends, so that what is built on the core finds its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from everthread.domain.model import Inbound, Reply


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Platform(Protocol):
    @property
    def name(self) -> str: ...
    def inbound(self) -> AsyncIterator[Inbound]: ...
    async def send(self, reply: Reply) -> str:
        """The platform's id of the message; the same reply sent twice is edited, not repeated, where it can be."""
        ...


class Embedder(Protocol):
    @property
    def dimensions(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]: ...
