"""Sessions whose compression is paused, and why."""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Table
from everthread.store.forgotten_facts import erase_forgotten_facts


class CompressionPause(Struct, frozen=True):
    """Why a session is not compressed for now: a summary failed, or the last ones saved too little."""

    session_id: str
    model: str
    """The model that wrote the summaries."""
    poor: int
    """Consecutive passes that saved too little."""
    cool_until: float
    problem: str


class CompressionPauses(Table):
    """Sessions whose compression is paused."""

    def get(self, session_id: str) -> CompressionPause | None:
        row = self._first(
            "SELECT session_id, model, poor, cool_until, problem FROM rests WHERE session_id = ?", (session_id,)
        )
        return CompressionPause(*row) if row else None

    def put(self, rest: CompressionPause) -> None:
        problem = erase_forgotten_facts(self._execute, rest.problem, rest.session_id)
        self._execute(
            "INSERT INTO rests (session_id, model, poor, cool_until, problem) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (session_id) DO UPDATE SET model = excluded.model, poor = excluded.poor, "
            "cool_until = excluded.cool_until, problem = excluded.problem",
            (*(rest.session_id, rest.model, rest.poor, rest.cool_until), problem),
        )

    def drop(self, session_id: str) -> None:
        self._execute("DELETE FROM rests WHERE session_id = ?", (session_id,))
