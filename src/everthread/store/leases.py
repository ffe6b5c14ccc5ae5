"""Leases of lanes and processes, timers, and queued plugin hooks."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.errors import Fenced
from everthread.domain.model import HookCall, Lease, SessionKey, Timer
from everthread.store.database import Table
from everthread.store.sql import from_json, key_of, placeholders, to_json

COMPRESSION_LEASE = "compress:"
"""Start of the name of a compression's lease."""
COMPRESSION_LEASE_S = 300.0
"""Duration of a compression's lease, which its holder does not renew."""


class QueuedHook(Struct, frozen=True):
    """A plugin hook that waits to be called."""

    id: int
    key: SessionKey
    call: HookCall
    attempts: int


class Leases(Table):
    """Leases with fences, and other rows that background lanes work on."""

    def acquire(self, name: str, holder: str, now: float, ttl_s: float) -> Lease | None:
        """Acquire the lease, unless it is held."""
        row = self._first(
            "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, 1, ?) "
            "ON CONFLICT (name) DO UPDATE SET fence = leases.fence + 1, holder = excluded.holder, "
            "expires_at = excluded.expires_at WHERE leases.expires_at <= ? RETURNING fence",
            (name, holder, now + ttl_s, now),
        )
        return Lease(name, holder, row[0]) if row is not None else None

    def is_held(self, name: str, now: float) -> bool:
        return self._exists("SELECT 1 FROM leases WHERE name = ? AND expires_at > ?", (name, now))

    def shorten(self, now: float, ttl_s: float) -> None:
        """Let leases that end too far ahead of the wall clock end in `ttl_s`. A live holder renews its lease before."""
        self._execute(
            "UPDATE leases SET expires_at = ? WHERE expires_at > ? AND (expires_at > ? OR name NOT LIKE ?)",
            (now + ttl_s, latest_deadline(now), latest_deadline(now, COMPRESSION_LEASE_S), f"{COMPRESSION_LEASE}%"),
        )

    def renew(self, lease: Lease, now: float, ttl_s: float) -> bool:
        return self._exists(
            "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ? AND fence = ? RETURNING fence",
            (now + ttl_s, lease.name, lease.holder, lease.fence),
        )

    def release(self, lease: Lease) -> None:
        # The row stays, so that the next holder's fence is higher than any granted before.
        self._execute(
            "UPDATE leases SET expires_at = 0.0 WHERE name = ? AND holder = ? AND fence = ?",
            (lease.name, lease.holder, lease.fence),
        )

    def check(self, lease: Lease) -> None:
        """Raise `Fenced` unless the lease is still held under this fence."""
        row = self._first("SELECT holder, fence FROM leases WHERE name = ?", (lease.name,))
        if row != (lease.holder, lease.fence):
            raise Fenced(f"Lease {lease.name}: another process has taken it over.")

    def keep_alive(self, holder: str, now: float, ttl_s: float) -> None:
        """Record that the process is alive: its turns are not recovered by others."""
        self._execute(
            "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, 1, ?) "
            "ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at",
            (f"process:{holder}", holder, now + ttl_s),
        )

    def is_alive(self, holder: str, now: float) -> bool:
        """Return whether the process has a valid lease."""
        return self.is_held(f"process:{holder}", now)

    def end_process(self, holder: str) -> None:
        """Remove the process's lease and release its lanes."""
        self._execute("DELETE FROM leases WHERE name = ?", (f"process:{holder}",))
        # The rows of its lanes stay, so that the next holder's fence is higher.
        self._execute("UPDATE leases SET expires_at = 0.0 WHERE holder = ?", (holder,))

    def sweep(self, before: float) -> None:
        """Delete process leases that expired earlier than `before`, unless the process holds a slot."""
        self._execute(
            "DELETE FROM leases WHERE name LIKE 'process:%' AND expires_at < ? "
            "AND holder NOT IN (SELECT holder FROM slots)",
            (before,),
        )
        self._execute("DELETE FROM serving WHERE holder NOT IN (SELECT holder FROM leases)")

    def arm(self, timer: Timer) -> None:
        """Set a timer, unless one of that name is due no later."""
        self._execute(
            "INSERT INTO timers (name, due_at, key) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "due_at = excluded.due_at, key = excluded.key WHERE timers.due_at > excluded.due_at",
            (timer.name, timer.due_at, str(timer.key)),
        )

    def disarm(self, name: str) -> None:
        self._execute("DELETE FROM timers WHERE name = ?", (name,))

    def due_timers(self, now: float, limit: int) -> tuple[Timer, ...]:
        rows = self._execute(
            "SELECT name, due_at, key FROM timers WHERE due_at <= ? ORDER BY due_at, name LIMIT ?", (now, limit)
        )
        return tuple(Timer(row[0], row[1], key_of(row[2])) for row in rows)

    def next_timer(self) -> float | None:
        row = self._first("SELECT MIN(due_at) FROM timers")
        return row[0] if row else None

    def add_hook(self, key: SessionKey, call: HookCall, now: float) -> None:
        self._execute(
            "INSERT INTO hook_calls (key, hook, session_id, platform, detail, attempts, at) "
            "VALUES (?, ?, ?, ?, ?, 0, ?)",
            (str(key), call.hook, call.session_id, call.platform, to_json(call.detail), now),
        )

    def hooks(
        self, limit: int, names: Collection[str] | None = None, except_keys: Collection[SessionKey] = ()
    ) -> tuple[QueuedHook, ...]:
        """Return the oldest queued hooks with these names."""
        clauses, values = ["true"], [str(key) for key in except_keys]
        if except_keys:
            clauses.append(f"key NOT IN ({placeholders(len(except_keys))})")
        if names is not None:
            clauses.append(f"hook IN ({placeholders(len(names))})")
            values += names
        rows = self._execute(
            "SELECT id, key, hook, session_id, platform, detail, attempts FROM hook_calls "
            f"WHERE {' AND '.join(clauses)} ORDER BY id LIMIT ?",
            (*values, limit),
        )
        return tuple(
            QueuedHook(row[0], key_of(row[1]), HookCall(row[2], row[3], row[4], from_json(row[5])), row[6])
            for row in rows
        )

    def count_hook_attempt(self, hook_id: int) -> bool:
        """Count an attempt. Return False if the hook is not queued any more."""
        return self._exists("UPDATE hook_calls SET attempts = attempts + 1 WHERE id = ? RETURNING id", (hook_id,))

    def drop_hook(self, hook_id: int) -> None:
        self._execute("DELETE FROM hook_calls WHERE id = ?", (hook_id,))
