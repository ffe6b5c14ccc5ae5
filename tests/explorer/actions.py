"""The steps of a schedule as values, and the bounds within which they are explored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.explorer.stepped_store import AFTER_COMMIT, BEFORE_COMMIT, BEFORE_STATEMENT, CrashPoint

if TYPE_CHECKING:
    from tests.explorer.world import World


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often each step may occur in a schedule. Messages and sessions of the starting point count too."""

    messages: int = 3
    sessions: int = 4
    crashes: int = 1
    stalls: int = 1
    waits: int = 1
    forgets: int = 1
    notes: int = 1
    commands: int = 1
    faults: int = 1


@dataclass(frozen=True, slots=True)
class Action:
    """One step: which process does what at which key."""

    verb: str
    process: str = "P"
    key: str = ""
    detail: str = ""
    crash: CrashPoint | None = None
    overtaken_at: int = 0
    """The process stalls before this access to the store, and the other process does the same work meanwhile."""

    def __str__(self) -> str:
        at = f" at {self.key}" if self.key else ""
        how = f", {self.crash}" if self.crash else ""
        how += f", overtaken before access {self.overtaken_at}" if self.overtaken_at else ""
        return f"{self.process}: {self.verb}{at}{f' ({self.detail})' if self.detail else ''}{how}"

    @property
    def crash_label(self) -> str:
        if self.crash is not None:
            return self.crash.when
        return "overtaken" if self.overtaken_at else "no crash"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measurements of a step: the number of statements in each of its units of work, and of its store accesses."""

    units: tuple[int, ...]
    accesses: int


@dataclass(frozen=True, slots=True)
class Step:
    """A kind of step: `choices` returns the actions that are possible in a state, `run` carries one out."""

    choices: Callable[[World, Bounds], Iterable[Action]]
    run: Callable[[World, Action], None]
    may_be_overtaken: bool = False


def crash_variants(action: Action, outcome: Outcome, *, each_statement: bool) -> list[Action]:
    """Return the same step with a crash before and after each of its commits, and before each statement if asked."""
    points: list[CrashPoint] = []
    for unit, statements in enumerate(outcome.units, 1):
        if each_statement:
            points += [CrashPoint(unit, BEFORE_STATEMENT, number) for number in range(1, statements + 1)]
        points += [CrashPoint(unit, BEFORE_COMMIT), CrashPoint(unit, AFTER_COMMIT)]
    return [replace(action, crash=point) for point in points]


def overtaken_variants(action: Action, outcome: Outcome) -> list[Action]:
    """Return the same step with a stall before each of its accesses to the store."""
    return [replace(action, overtaken_at=access) for access in range(1, outcome.accesses + 1)]
