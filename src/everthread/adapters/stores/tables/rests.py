"""Why sessions are not compressed for now."""

from __future__ import annotations

from everthread.adapters.stores.tables.rows import Execute, first, run
from everthread.ports.store import Rest


class RestTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def get(self, session_id: str) -> Rest | None:
        row = first(
            self._execute(
                "SELECT session_id, model, poor, cool_until, problem FROM rests WHERE session_id = ?", (session_id,)
            )
        )
        return Rest(*row) if row else None

    def put(self, rest: Rest) -> None:
        run(
            self._execute(
                "INSERT INTO rests (session_id, model, poor, cool_until, problem) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (session_id) DO UPDATE SET model = excluded.model, poor = excluded.poor, "
                "cool_until = excluded.cool_until, problem = excluded.problem",
                (rest.session_id, rest.model, rest.poor, rest.cool_until, rest.problem),
            )
        )

    def drop(self, session_id: str) -> None:
        run(self._execute("DELETE FROM rests WHERE session_id = ?", (session_id,)))
