"""What a check is handed, and what it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everthread.cli.opened import Runtime, Unopened
    from everthread.config import Places, Settings
    from everthread.ports.store import Examined


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check. `well` is None if there was nothing to check."""

    well: bool | None
    says: str
    fix: str = ""


def well(says: str) -> Finding:
    return Finding(True, says)


def bad(says: str, fix: str) -> Finding:
    return Finding(False, says, fix)


def skipped(says: str) -> Finding:
    return Finding(None, says)


@dataclass(slots=True)
class Case:
    """One examination. What an earlier check has opened is there for the later ones."""

    places: Places
    offline: bool
    settings: Settings | None = None
    """None if they can't be read."""
    config_problem: str = ""
    unopened: Unopened | None = None
    runtime: Runtime | None = None
    """None if there is no store, or it can't be opened."""
    examined: Examined | None = None


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[Case], Awaitable[Finding]]
    needs: str = ""
    """`settings` or `runtime`: without it, there is nothing to check."""
    bound_s: float = 10.0
