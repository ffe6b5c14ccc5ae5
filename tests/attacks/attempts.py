"""Record of the attempts of one group."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Attempts:
    group: str
    count: int = 0
    successes: list[str] = field(default_factory=list[str])
    undelivered: int = 0
    """Attempts whose instruction did not reach the model, so that they prove nothing. They are not in `count`."""

    def record(self, name: str, got: str = "") -> None:
        """Record an attempt. `got` describes what the attacker obtained; it is empty if the attempt failed."""
        self.count += 1
        if got:
            self.successes.append(f"{name}: {got}")
