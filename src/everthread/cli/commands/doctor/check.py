"""What a check is handed, and what it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.cli.context import CliRuntime, Unopened
    from everthread.config.settings import Places, Settings
    from everthread.store.unit_of_work import Examined


class Finding(Struct, frozen=True):
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


class Case(Struct):
    """One examination. What an earlier check has opened is there for the later ones."""

    places: Places
    offline: bool
    settings: Settings | None = None
    """None if they can't be read."""
    config_problem: str = ""
    unopened: Unopened | None = None
    runtime: CliRuntime | None = None
    """None if there is no store, or it can't be opened."""
    examined: Examined | None = None
    store_problem: str = ""
    """Why the store could not be examined."""

    @property
    def db_path(self) -> Path:
        from everthread.config.settings import Settings

        return (self.settings or Settings(self.places.home)).db_path


class Check(Struct, frozen=True):
    name: str
    run: Callable[[Case], Awaitable[Finding]]
    needs: str = ""
    """Without it, there is nothing to check: `unopened`, `settings`, `store` (an open one), `runtime` (both)."""
    bound_s: float = 8.0
