"""Incidents: errors that `doctor` reports."""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Table
from everthread.store.forgotten_facts import erase_forgotten_facts


class Incident(Struct, frozen=True):
    """An error at a boundary that changed nothing else."""

    at: float
    source: str
    session_id: str | None
    text: str


KEPT_MAX = 1000


class Incidents(Table):
    def add(self, incident: Incident) -> None:
        text = erase_forgotten_facts(self._execute, incident.text[:2000], incident.session_id)
        newest = self._database.insert(
            "INSERT INTO incidents (at, source, session_id, content) VALUES (?, ?, ?, ?)",
            (incident.at, incident.source, incident.session_id, text),
        )
        self._execute("DELETE FROM incidents WHERE id <= ?", (newest - KEPT_MAX,))

    def newest(self, limit: int) -> tuple[Incident, ...]:
        rows = self._execute("SELECT at, source, session_id, content FROM incidents ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(Incident(*row) for row in rows)
