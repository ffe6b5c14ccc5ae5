"""Checks of the machine, the configuration and the files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from everthread.cli.commands.doctor.check import Case, Finding, bad, skipped, well
from everthread.domain.clock_rules import EARLIEST_CREDIBLE, is_ahead
from everthread.domain.errors import BadConfig, StoreCorrupt, StoreError

PYTHON = (3, 11)
DISK_MB_MIN = 200
EXAMINE_S_MAX = 15.0


async def python(case: Case) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < PYTHON:
        return bad(f"Python {version}", f"install Python {'.'.join(map(str, PYTHON))} or newer")
    return well(f"Python {version}")


async def configuration(case: Case) -> Finding:
    from everthread.config.settings import default_model
    from everthread.config.validate import problems

    found = problems(case.home_paths) or [*filter(None, [case.config_problem])]
    if not found and case.settings is not None:
        try:
            default_model(case.settings)
        except BadConfig as error:
            found = [str(error)]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return bad(
            f"{found[0]}{more}",
            "list all problems with everthread config validate, fix them with everthread config edit",
        )
    return well(str(case.home_paths.config) if case.home_paths.config.exists() else "no config.toml; defaults are used")


async def home(case: Case) -> Finding:
    folder = case.home_paths.home
    if not folder.exists():
        return skipped(f"{folder} does not exist yet")
    if not folder.is_dir():
        return bad(f"{folder} is not a folder", "move it, or choose another home with --home or EVERTHREAD_HOME")
    private = [
        folder,
        *folder.glob("everthread.db*"),
        *folder.glob("gateway.*"),
        *folder.glob("local.token*"),
        *folder.glob("logs/*"),
        *folder.glob("memory/**/*.md"),
    ]
    return _permissions([folder / "memory", folder / "logs", *private], f"only you can read {folder}")


async def env(case: Case) -> Finding:
    if not case.home_paths.env.exists():
        return skipped(f"{case.home_paths.env} does not exist")
    return _permissions([case.home_paths.env], f"only you can read {case.home_paths.env}")


def _permissions(paths: list[Path], says: str) -> Finding:
    for path in paths:
        if path.exists() and path.stat().st_mode & 0o077:
            wanted = "700" if path.is_dir() else "600"
            return bad(f"other users can access {path}", f"chmod {wanted} {path}")
    return well(says)


async def disk(case: Case) -> Finding:
    folder = case.home_paths.home
    while not folder.exists():
        folder = folder.parent
    free_mb = shutil.disk_usage(folder).free // 1_000_000
    if free_mb < DISK_MB_MIN:
        return bad(f"{free_mb} MB free", f"free some space on the disk of {folder}: at least {DISK_MB_MIN} MB")
    return well(f"{free_mb:,} MB free")


async def engine(case: Case) -> Finding:
    assert case.unopened is not None

    try:
        case.examined = await case.unopened.examine_store(EXAMINE_S_MAX)
    except StoreError as error:
        case.store_problem, case.is_corrupt = str(error), isinstance(error, StoreCorrupt)
        return skipped("the store can't be read")
    if case.examined.engine_problem:
        return bad(f"{case.examined.engine}: {case.examined.engine_problem}", "pip install --upgrade apsw")
    return well(case.examined.engine)


async def store(case: Case) -> Finding:
    found = case.examined
    if case.store_problem:
        readable = "" if case.is_corrupt else f"make {case.db_path} readable for your user; if it is, "
        return bad(case.store_problem, f"{readable}{_restore(case)}")
    if found is None:
        return bad("the store can't be read", f"fix the permissions of the home, or {_restore(case)}")
    if not case.db_path.exists():
        return skipped("no data yet")
    if found.damage:
        return bad(f"{case.db_path}: {found.damage}", _restore(case))
    if found.schema > found.schema_known:
        return bad(f"schema {found.schema} is newer than this program ({found.schema_known})", "upgrade everthread")
    if case.runtime is None:
        return bad(f"{case.db_path} can't be opened", "run everthread sessions list for the error")
    part = "" if found.whole else f" found within {EXAMINE_S_MAX:g} s"
    return well(f"no damage{part}, schema {found.schema or found.schema_known}")


async def search_index(case: Case) -> Finding:
    found = case.examined
    if found is None or found.damage or not case.db_path.exists():
        return skipped("skipped: there is no usable store")
    if found.index_damage:
        return bad(f"damaged: {found.index_damage}", "everthread sessions reindex rebuilds it; no message is lost")
    return well("no damage" if found.whole else f"no damage found within {EXAMINE_S_MAX:g} s")


def _restore(case: Case) -> str:
    assert case.unopened is not None
    hint = case.unopened.restore_hint()
    return f"stop all processes that use it, and {hint[0].lower()}{hint[1:]}"


async def clock(case: Case) -> Finding:
    assert case.unopened is not None
    now = case.unopened.clock.now()
    fix = "set the clock of this machine and enable NTP"
    if now < EARLIEST_CREDIBLE:
        return bad("the clock is years behind", fix)
    if case.runtime is not None:
        newest = await case.runtime.store.read(lambda uow: uow.sessions.newest_activity())
        if is_ahead(newest, now):
            return bad("the clock is behind the newest stored time", fix)
    return well("consistent with stored times")
