"""The values of a check: `Check`, its input `Case` and its outcome `Finding`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.cli.context import CliRuntime, UnopenedRuntime
    from everthread.config.settings import HomePaths, Settings
    from everthread.store.unit_of_work import StoreCheck


class Finding(Struct, frozen=True):
    """The outcome of a check. `well` is None if the check was skipped."""

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
    """One run of the doctor. Later checks use what earlier ones opened."""

    home_paths: HomePaths
    offline: bool
    settings: Settings | None = None
    """None if the configuration is invalid."""
    config_problem: str = ""
    unopened: UnopenedRuntime | None = None
    runtime: CliRuntime | None = None
    """None if there is no store, or it can't be opened."""
    examined: StoreCheck | None = None
    store_problem: str = ""
    """Error of reading the store; empty if none."""

    @property
    def open_runtime(self) -> CliRuntime:
        """The runtime, for checks that need `store` or `runtime`."""
        assert self.runtime is not None
        return self.runtime

    @property
    def db_path(self) -> Path:
        from everthread.config.settings import Settings

        return (self.settings or Settings(self.home_paths.home)).db_path


class Check(Struct, frozen=True):
    name: str
    run: Callable[[Case], Awaitable[Finding]]
    needs: str = ""
    """The check is skipped without it: `unopened`, `settings`, `store` (an open one), `runtime` (both)."""
    bound_s: float = 8.0
