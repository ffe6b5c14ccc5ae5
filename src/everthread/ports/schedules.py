"""Scheduled tasks and their times, as the store keeps them."""

from __future__ import annotations

from typing import Protocol

from everthread.domain.schedule import Occurrence, Schedule


class Schedules(Protocol):
    def add(self, schedule: Schedule) -> bool:
        """False if the owner has one of that name."""
        ...

    def get(self, schedule_id: str) -> Schedule | None: ...
    def named(self, owner: str, name: str) -> Schedule | None: ...
    def all(self, owner: str | None = None) -> tuple[Schedule, ...]:
        """The owner's, or everybody's, by owner and name."""
        ...

    def save(self, schedule: Schedule) -> None:
        """Store its state, and when it is due next."""
        ...

    def remove(self, schedule_id: str) -> bool:
        """With all its times. False if there is none."""
        ...

    def due(self, now: float, limit: int) -> tuple[str, ...]:
        """Which are due, the longest due first."""
        ...

    def next_at(self) -> float | None:
        """When the next of all is due."""
        ...

    def add_time(self, occurrence: Occurrence) -> bool:
        """False if that time is there already: whatever it is for is done by whoever was first."""
        ...

    def time(self, schedule_id: str, due_at: float) -> Occurrence | None: ...
    def is_running(self, schedule_id: str) -> bool:
        """Whether one of its times is being done."""
        ...

    def save_time(self, occurrence: Occurrence) -> None:
        """Nothing happens if it is gone."""
        ...

    def open_times(self, now: float, limit: int) -> tuple[Occurrence, ...]:
        """Those that are not over and need not wait, the earliest first."""
        ...

    def times(self, schedule_id: str, limit: int) -> tuple[Occurrence, ...]:
        """The latest first."""
        ...

    def trim(self, schedule_id: str, keep: int) -> None:
        """Let go of all but the latest, but not of those that are not over."""
        ...
