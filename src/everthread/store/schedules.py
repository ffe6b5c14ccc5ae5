"""Scheduled tasks and their occurrences."""

from __future__ import annotations

from typing import Any

import msgspec

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.recurrence import MissedPolicy
from everthread.domain.schedule import RETRY_S_MAX, Occurrence, OccurrenceState, Schedule, ScheduleState, Target
from everthread.store.database import Table
from everthread.store.forgotten_facts import erase_facts_of

_SCHEDULE = (
    "id, owner, name, recurrence, zone, anchor, content, target, model, tools, missed, continues, spend, state, next_at"
)
_TIME = "schedule_id, due_at, owner, state, inbox_id, session_id, ended_at, problem, attempts, retry_at"
# The condition of the partial index.
_OPEN = "state IN ('waiting', 'running', 'delivering')"


class Schedules(Table):
    """Tasks, and one row for each time that one was due."""

    def add(self, schedule: Schedule) -> bool:
        """Add a task. Return False if the owner has one of that name."""
        s = schedule
        tools = msgspec.json.encode(s.tools).decode() if s.tools is not None else None
        return self._exists(
            f"INSERT INTO schedules ({_SCHEDULE}) VALUES ({'?, ' * 14}?) ON CONFLICT DO NOTHING RETURNING 1",
            (
                *(s.id, s.owner, s.name, s.recurrence, s.zone, s.anchor, s.prompt),
                *(msgspec.json.encode(s.target).decode(), s.model, tools, s.missed.value, s.continues),
                *(s.spend, s.state.value, s.next_at),
            ),
        )

    def get(self, schedule_id: str) -> Schedule | None:
        row = self._first(f"SELECT {_SCHEDULE} FROM schedules WHERE id = ?", (schedule_id,))
        return _schedule(row) if row else None

    def named(self, owner: str, name: str) -> Schedule | None:
        row = self._first(f"SELECT {_SCHEDULE} FROM schedules WHERE owner = ? AND name = ?", (owner, name))
        return _schedule(row) if row else None

    def all(self, owner: str | None = None) -> tuple[Schedule, ...]:
        """Return the owner's tasks, or all, by owner and name."""
        whose, values = ("WHERE owner = ?", (owner,)) if owner is not None else ("", ())
        rows = self._execute(f"SELECT {_SCHEDULE} FROM schedules {whose} ORDER BY owner, name", values)
        return tuple(_schedule(row) for row in rows)

    def save(self, schedule: Schedule) -> None:
        """Update the state, the anchor and the next due time."""
        self._execute(
            "UPDATE schedules SET state = ?, anchor = ?, next_at = ? WHERE id = ?",
            (schedule.state.value, schedule.anchor, schedule.next_at, schedule.id),
        )

    def remove(self, schedule_id: str) -> bool:
        """Delete a task with its occurrences. Return False if there is none."""
        self._execute("DELETE FROM occurrences WHERE schedule_id = ?", (schedule_id,))
        return self._exists("DELETE FROM schedules WHERE id = ? RETURNING 1", (schedule_id,))

    def due(self, now: float, limit: int) -> tuple[str, ...]:
        """Return the ids of due tasks, the longest due first."""
        rows = self._execute(
            "SELECT id FROM schedules WHERE next_at IS NOT NULL AND next_at <= ? ORDER BY next_at, id LIMIT ?",
            (now, limit),
        )
        return tuple(row[0] for row in rows)

    def next_at(self) -> float | None:
        """Return when the next task is due."""
        row = self._first("SELECT MIN(next_at) FROM schedules WHERE next_at IS NOT NULL")
        return row[0] if row else None

    def add_occurrence(self, occurrence: Occurrence) -> bool:
        """Add an occurrence. Return False if another process has added it."""
        o = occurrence
        return self._exists(
            f"INSERT INTO occurrences ({_TIME}) VALUES ({'?, ' * 9}?) ON CONFLICT DO NOTHING RETURNING 1",
            (
                *(o.schedule_id, o.due_at, o.owner, o.state.value, o.inbox_id, o.session_id, o.ended_at),
                *(self._erased_problem(o), o.attempts, o.retry_at),
            ),
        )

    def occurrence(self, schedule_id: str, due_at: float) -> Occurrence | None:
        row = self._first(
            f"SELECT {_TIME} FROM occurrences WHERE schedule_id = ? AND due_at = ?", (schedule_id, due_at)
        )
        return _time(row) if row else None

    def is_running(self, schedule_id: str) -> bool:
        """Return whether an occurrence of the task is running."""
        running = "SELECT 1 FROM occurrences WHERE schedule_id = ? AND state = 'running' LIMIT 1"
        return self._exists(running, (schedule_id,))

    def save_occurrence(self, occurrence: Occurrence) -> None:
        """Update an occurrence. Does nothing if it was deleted."""
        o = occurrence
        self._execute(
            "UPDATE occurrences SET state = ?, inbox_id = ?, session_id = ?, ended_at = ?, problem = ?, "
            "attempts = ?, retry_at = ? WHERE schedule_id = ? AND due_at = ?",
            (
                *(o.state.value, o.inbox_id, o.session_id, o.ended_at, self._erased_problem(o), o.attempts, o.retry_at),
                *(o.schedule_id, o.due_at),
            ),
        )

    def _erased_problem(self, occurrence: Occurrence) -> str:
        """Return the problem without facts that were forgotten since it was read or found."""
        return erase_facts_of(self._execute, occurrence.problem, occurrence.owner)

    def open_occurrences(self, now: float, limit: int) -> tuple[Occurrence, ...]:
        """Return unfinished occurrences that need not wait, the earliest first."""
        rows = self._execute(
            f"SELECT {_TIME} FROM occurrences WHERE {_OPEN} AND (retry_at <= ? OR retry_at > ?) "
            "ORDER BY due_at, schedule_id LIMIT ?",
            (now, latest_deadline(now, RETRY_S_MAX), limit),
        )
        return tuple(_time(row) for row in rows)

    def occurrences(self, schedule_id: str, limit: int) -> tuple[Occurrence, ...]:
        """Return occurrences, the latest first."""
        rows = self._execute(
            f"SELECT {_TIME} FROM occurrences WHERE schedule_id = ? ORDER BY due_at DESC LIMIT ?", (schedule_id, limit)
        )
        return tuple(_time(row) for row in rows)

    def trim(self, schedule_id: str, keep: int) -> None:
        """Delete finished occurrences, except the latest `keep`."""
        self._execute(
            f"DELETE FROM occurrences WHERE schedule_id = ? AND NOT {_OPEN} AND due_at < (SELECT MIN(due_at) FROM "
            "(SELECT due_at FROM occurrences WHERE schedule_id = ? ORDER BY due_at DESC LIMIT ?) AS kept)",
            (schedule_id, schedule_id, keep),
        )


def _schedule(row: tuple[Any, ...]) -> Schedule:
    schedule_id, owner, name, recurrence, zone, anchor, prompt, target, model, tools, missed, continues, *rest = row
    spend, state, next_at = rest
    return Schedule(
        schedule_id,
        owner,
        name,
        recurrence,
        zone,
        anchor,
        prompt,
        msgspec.json.decode(target, type=Target),
        model,
        msgspec.json.decode(tools, type=tuple[str, ...]) if tools is not None else None,
        MissedPolicy(missed),
        bool(continues),
        spend,
        ScheduleState(state),
        next_at,
    )


def _time(row: tuple[Any, ...]) -> Occurrence:
    schedule_id, due_at, owner, state, *rest = row
    return Occurrence(schedule_id, due_at, owner, OccurrenceState(state), *rest)
