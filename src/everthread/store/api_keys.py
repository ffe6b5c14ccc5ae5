"""API keys of the HTTP interface. Only their hashes are stored."""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Execute
from everthread.store.sql import first


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


_COLUMNS = "token_hash, owner, name, at, used_at"


class ApiKeys:
    """The keys of all owners."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def add(self, token: ApiKey) -> bool:
        """Add a key. Return False if the owner has one of that name."""
        added = self._execute(
            f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name",
            (token.token_hash, token.owner, token.name, token.at, token.used_at),
        )
        return first(added) is not None

    def get(self, token_hash: str) -> ApiKey | None:
        row = first(self._execute(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,)))
        return ApiKey(*row) if row else None

    def any_exist(self) -> bool:
        """Return whether any key exists."""
        return first(self._execute("SELECT 1 FROM tokens LIMIT 1")) is not None

    def all(self) -> tuple[ApiKey, ...]:
        """Return all keys by owner and name."""
        return tuple(ApiKey(*row) for row in self._execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY owner, name"))

    def record_use(self, token_hash: str, now: float) -> None:
        """Record the time of the last use."""
        self._execute("UPDATE tokens SET used_at = ? WHERE token_hash = ?", (now, token_hash))

    def remove(self, owner: str, name: str) -> bool:
        """Remove a key. Return False if there is none."""
        removed = self._execute("DELETE FROM tokens WHERE owner = ? AND name = ? RETURNING name", (owner, name))
        return first(removed) is not None
