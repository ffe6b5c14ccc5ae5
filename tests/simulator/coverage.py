"""Coverage: pairs of a boundary and a fault, and how often each was seen.

`docs/contributing/run-the-simulator.md` defines the columns and explains the pairs that never occur.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from everthread.lifecycle import ForgetFact
from tests.simulator import operations as asked

BOUNDARIES = ("new", "reset", "resume", "branch", "compress", "rewind", "expire", "suspend", "forget")
CRASH_BEFORE = "crash before commit"
CRASH_AFTER = "crash after commit"
FROZEN = "frozen past lease"
REPEATED = "transaction repeated"
STORE_ERROR = "store error"
PROVIDER_FAILURE = "provider failure"
CLOCK_FORWARD = "clock forward"
CLOCK_BACK = "clock back"
SUSPENSION = "suspension"
OTHER_TURN = "turn in other process"
OTHER_BOUNDARY = "boundary in other process"
HOOK_FAILURE = "hook failure"
FAULTS = (
    CRASH_BEFORE,
    CRASH_AFTER,
    FROZEN,
    REPEATED,
    STORE_ERROR,
    PROVIDER_FAILURE,
    CLOCK_FORWARD,
    CLOCK_BACK,
    SUSPENSION,
    OTHER_TURN,
    OTHER_BOUNDARY,
    HOOK_FAILURE,
)
SOON_S = 10.0
"""A boundary is counted with a change of the clock that was at most so long before it."""


@dataclass
class Coverage:
    """Count the pairs of one simulation."""

    pairs: Counter[str] = field(default_factory=Counter[str])
    began: float = 0.0
    """Time at which the transaction that is being reported was requested."""
    _changes: dict[str, float] = field(default_factory=dict[str, float])
    _crossed: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    """Time and process of the last boundary of each key."""
    _last: dict[str, str] = field(default_factory=dict[str, str])
    """Last boundary that left or opened a session."""

    def hit(self, boundary: str, fault: str) -> None:
        self.pairs[f"{boundary}: {fault}"] += 1

    def clock_changed(self, change: str, now: float) -> None:
        self._changes[change] = now

    def crossed(self, boundary: str, key: str, sessions: tuple[str | None, ...], process: str, now: float) -> None:
        """Record a committed boundary."""
        for change, at in self._changes.items():
            if now - at <= SOON_S:
                self.hit(boundary, change)
        at, other = self._crossed.get(key, (-1.0, process))
        if other != process and at >= self.began:
            self.hit(boundary, OTHER_BOUNDARY)
        self._crossed[key] = (now, process)
        self._last |= {session_id: boundary for session_id in sessions if session_id}

    def delivery_failed(self, session_id: str) -> None:
        """Record that a provider failed to take an entry that a boundary wrote."""
        if session_id in self._last:
            self.hit(self._last[session_id], PROVIDER_FAILURE)


def boundary_of(operation: object | None) -> str:
    """Name the boundary that an operation asks for; empty if it asks for none."""
    match operation:
        case asked.Cross(_, boundary):
            return type(boundary).__name__.lower()
        case asked.Stop():
            return "suspend"
        case asked.ExpireDue():
            return "expire"
        case asked.ForgetOperation(what) if not isinstance(what, ForgetFact):
            return "forget"
        case _:
            return ""


def table(pairs: Counter[str]) -> str:
    """Render the counts as a Markdown table. Empty cells are shown as a dash."""
    rows = [("", *FAULTS)]
    rows += [(name, *(str(pairs[f"{name}: {fault}"] or "-") for fault in FAULTS)) for name in BOUNDARIES]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
