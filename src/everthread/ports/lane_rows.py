"""Leases, processes, timers, hooks that wait and incidents, as the store keeps them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from everthread.domain.model import HookCall, Lease, SessionKey, Timer


class QueuedHook(Struct, frozen=True):
    id: int
    key: SessionKey
    call: HookCall
    attempts: int


class Incident(Struct, frozen=True):
    """Something that went wrong at a boundary and changed nothing else."""

    at: float
    source: str
    session_id: str | None
    text: str


class LaneRows(Protocol):
    def acquire(self, name: str, holder: str, now: float, ttl_s: float) -> Lease | None:
        """The lease, unless somebody has it. All who want one of that name ask for it for the same time."""
        ...

    def may_acquire(self, name: str, now: float, ttl_s: float) -> bool:
        """Whether it is worth asking: nobody has it, or has it for longer than anybody can."""
        ...

    def renew(self, lease: Lease, now: float, ttl_s: float) -> bool: ...
    def release(self, lease: Lease) -> None: ...
    def check(self, lease: Lease) -> None:
        """Raises `Fenced` unless the lease is still this holder's."""
        ...

    def keep_alive(self, holder: str, now: float, ttl_s: float) -> None:
        """This process is there: what it has begun is nobody else's to recover."""
        ...

    def is_alive(self, holder: str, now: float) -> bool:
        """Whether the process was there lately and has not left."""
        ...

    def bound_lives(self, until: float) -> None:
        """No process is there until later than this: whatever says so was written before the clock was put back."""
        ...

    def leave(self, holder: str) -> None:
        """This process is not there any more: what it has begun, and the lanes it served, are anybody's."""
        ...

    def sweep(self, before: float) -> None:
        """Let go of what is known of processes that were last heard of before."""
        ...

    def arm(self, timer: Timer) -> None:
        """Set a timer unless one of that name is set already."""
        ...

    def disarm(self, name: str) -> None: ...
    def due_timers(self, now: float, limit: int) -> tuple[Timer, ...]: ...
    def next_timer(self) -> float | None: ...
    def add_hook(self, key: SessionKey, call: HookCall, now: float) -> None: ...
    def hooks(
        self, limit: int, names: Collection[str] | None = None, except_keys: Collection[SessionKey] = ()
    ) -> tuple[QueuedHook, ...]:
        """The oldest that wait, of these names."""
        ...

    def hook_tried(self, hook_id: int) -> bool:
        """False if it waits no longer."""
        ...

    def drop_hook(self, hook_id: int) -> None: ...
    def add_incident(self, incident: Incident) -> None: ...
    def incidents(self, limit: int) -> tuple[Incident, ...]: ...
