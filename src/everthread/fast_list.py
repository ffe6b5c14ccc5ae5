"""List the newest sessions without loading the runtime, for a fast `sessions list`.

Only a file in the expected state is read. Everything else is left to the runtime, which reports the reason.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from everthread.domain.model import Session

_APPLICATION_ID = 0x45565448
_MIGRATIONS = Path(__file__).parent / "adapters" / "sqlite" / "migrations"


def newest_sessions(path: Path, limit: int) -> Sequence[tuple[Session, int]] | None:
    """Return the last active conversations with their numbers of turns, or None if the runtime has to read the file."""
    import apsw  # noqa: PLC0415 - a help text need not wait for the store

    try:
        connection = cast(Any, apsw).Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error:
        return None
    try:
        connection.set_busy_timeout(1000)
        connection.execute("BEGIN")
        return _newest(connection, limit) if _is_as_expected(connection) else None
    except apsw.Error:
        return None
    finally:
        connection.close()


def _newest(connection: Any, limit: int) -> Sequence[tuple[Session, int]]:
    from everthread.store.session_list import conversations, shown_turns  # noqa: PLC0415 - as above

    def execute(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return list(connection.execute(sql, parameters))

    return [(session, shown_turns(execute, session)) for session in conversations(execute, limit)]


def _is_as_expected(connection: Any) -> bool:
    """Return whether the file is Everthread's and has exactly this program's schema."""
    if connection.pragma("application_id") != _APPLICATION_ID:
        return False
    known = sorted(int(name[:4]) for name in os.listdir(_MIGRATIONS) if name.endswith(".sql"))
    return [row[0] for row in connection.execute("SELECT number FROM migrations ORDER BY number")] == known
