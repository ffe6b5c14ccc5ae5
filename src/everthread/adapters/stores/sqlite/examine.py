"""Looking a store's file over, without changing it and within a bound."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import apsw

from everthread.adapters.stores.sqlite.connection import BUSY_S_MAX, connect_bare, translated
from everthread.adapters.stores.sqlite.migrate import known_migrations, refuse_others
from everthread.domain.errors import StoreError
from everthread.ports.store import Examined

_STEPS = 10_000
_OLDEST = (3, 51, 3)


def examine(path: Path, bound_s: float) -> Examined:
    """Raises `StoreError` if the file can't be read at all."""
    version = apsw.sqlitelibversion()
    too_old = tuple(map(int, version.split("."))) < _OLDEST
    problem = "it can damage a file that several connections use" if too_old else ""
    known = known_migrations()[-1].number
    engine = f"SQLite {version}"
    if not path.exists():
        return Examined(engine, problem, 0, known, "", True)
    try:
        connection = connect_bare(str(path), busy_s_max=BUSY_S_MAX)
        try:
            refuse_others(connection, str(path))
            ((schema,),) = connection.execute("SELECT COALESCE(MAX(number), 0) FROM migrations")
            damage, whole = _damage(connection, bound_s)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translated(error, str(path)) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    return Examined(engine, problem, schema, known, damage, whole)


def _damage(connection: Any, bound_s: float) -> tuple[str, bool]:
    """What the database itself finds wrong, and whether it has looked at everything."""
    deadline = time.monotonic() + bound_s
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        ((said,),) = connection.execute("PRAGMA quick_check(1)")
    except apsw.InterruptError:
        return "", False
    finally:
        connection.set_progress_handler(None)
    return ("" if said == "ok" else str(said)), True
