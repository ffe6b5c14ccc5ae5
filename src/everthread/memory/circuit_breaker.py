"""Which providers are left alone for now, as far as this process has seen.

An open breaker stands in the store. Nothing but a delivery that arrives after all ends it before its time, so whoever
has read it once need not read it again until then: while a provider is gone, no turn reads anything because of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from everthread.store.cursors import ProviderRow


class Breakers:
    def __init__(self, open_s_max: float) -> None:
        self._open_s_max = open_s_max
        self._until: dict[str, float] = {}

    def open_until(self, provider: str, now: float) -> float | None:
        """None if it may be closed: then the store knows."""
        until = self._until.get(provider, 0.0)
        # Further away than one is ever open: the clock was put back.
        return until if now < until <= now + self._open_s_max else None

    def seen(self, rows: Iterable[ProviderRow]) -> None:
        """What the store says of them now."""
        self._until.update((row.name, row.open_until) for row in rows)

    def end(self, provider: str) -> None:
        """Something has arrived there."""
        self._until.pop(provider, None)
