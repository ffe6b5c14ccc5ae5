"""A check of the doctor: its input `Case`, its outcome `Finding`, and `run_check`, which runs it with a time limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.cli.context import CliRuntime, UnopenedRuntime
    from everthread.config.schema import Settings
    from everthread.config.settings import HomePaths
    from everthread.store.unit_of_work import StoreCheck


class Finding(Struct, frozen=True):
    """The outcome of a check. `well` is None if the check was skipped."""

    well: bool | None
    says: str
    fix: str = ""
    lines: tuple[str, ...] = ()
    """Lines of TOML to copy from."""


def well(says: str, lines: tuple[str, ...] = ()) -> Finding:
    return Finding(True, says, lines=lines)


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
    is_corrupt: bool = False
    """The error means that the database is damaged or lost."""

    @property
    def open_runtime(self) -> CliRuntime:
        """The runtime, for checks that need `store` or `runtime`."""
        assert self.runtime is not None
        return self.runtime

    @property
    def db_path(self) -> Path:
        from everthread.config.schema import Settings

        return (self.settings or Settings(self.home_paths.home)).db_path


class Check(Struct, frozen=True):
    name: str
    run: Callable[[Case], Awaitable[Finding]]
    needs: str = ""
    """The check is skipped without it: `unopened`, `settings`, `store` (an open one), `runtime` (both)."""
    bound_s: float = 8.0


async def run_check(check: Check, case: Case) -> Finding:
    """Run one check. An exception or a timeout is a failure."""
    import asyncio

    missing = {
        "unopened": case.unopened is None,
        "settings": case.settings is None,
        "runtime": case.settings is None and case.runtime is not None,
    }
    if missing.get(check.needs):
        return skipped("skipped: the configuration is invalid")
    if check.needs in ("store", "runtime") and case.runtime is None:
        return skipped("skipped: there is no usable store")
    try:
        async with asyncio.timeout(check.bound_s):
            return await check.run(case)
    except TimeoutError:
        return bad(f"no answer within {check.bound_s:g} s", "try again later")
    except OSError as error:
        if error.filename is None:
            return bad(str(error), "see everthread logs")
        return bad(f"{error.filename}: {error.strerror}", "fix its permissions, or choose another home with --home")
    except Exception as error:  # noqa: BLE001 - the other checks must still run
        return bad(str(error) or type(error).__name__, "see everthread logs")
