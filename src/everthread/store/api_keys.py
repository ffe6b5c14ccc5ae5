"""API keys of the HTTP interface. Only their hashes are stored."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from everthread.domain.clock_rules import is_ahead
from everthread.store.database import Table


class ApiKey(Struct, frozen=True):
    """An API key of the HTTP interface."""

    token_hash: str
    owner: str
    """The owner whose conversations it opens."""
    name: str
    """Unique among the owner's keys."""
    at: float
    used_at: float | None = None
    """The approximate time of the last use."""
    expires_at: float | None = None
    read_only: bool = False
    automatic: bool = False
    """Created by the first start of a gateway."""

    def is_valid(self, now: float) -> bool:
        """Return False once it has expired.

        One that can expire is not valid before its creation either: a clock that was set back must not extend it.
        """
        return self.expires_at is None or (now < self.expires_at and not is_ahead(self.at, now))


_COLUMNS = "token_hash, owner, name, at, used_at, expires_at, read_only, automatic"


class ApiKeys(Table):
    """The keys of all owners."""

    def add(self, key: ApiKey) -> bool:
        """Add a key. Return False if the owner has one of that name."""
        added = self._exists(
            f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name",
            (
                *(key.token_hash, key.owner, key.name, key.at, key.used_at, key.expires_at),
                *(int(key.read_only), int(key.automatic)),
            ),
        )
        if added:
            self._execute("INSERT INTO tokens_first (id, at) VALUES (1, ?) ON CONFLICT DO NOTHING", (key.at,))
        return added

    def get(self, token_hash: str) -> ApiKey | None:
        row = self._first(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,))
        return _key(row) if row else None

    def ever_existed(self) -> bool:
        """Return True if there is a key, or was one that has been revoked."""
        return self._exists("SELECT 1 FROM tokens_first")

    def all(self) -> tuple[ApiKey, ...]:
        """Return all keys by owner and name."""
        return tuple(map(_key, self._execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY owner, name")))

    def record_use(self, token_hash: str, now: float) -> None:
        """Record the time of the last use."""
        self._execute("UPDATE tokens SET used_at = ? WHERE token_hash = ?", (now, token_hash))

    def remove(self, owner: str, name: str) -> ApiKey | None:
        """Remove a key and return it; None if there is none."""
        row = self._first(f"DELETE FROM tokens WHERE owner = ? AND name = ? RETURNING {_COLUMNS}", (owner, name))
        return _key(row) if row else None


def _key(row: tuple[Any, ...]) -> ApiKey:
    return ApiKey(*row[:6], read_only=bool(row[6]), automatic=bool(row[7]))
