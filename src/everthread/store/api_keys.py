"""API keys of the HTTP interface. Only their hashes are stored."""

from __future__ import annotations

from msgspec import Struct

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


_COLUMNS = "token_hash, owner, name, at, used_at"


class ApiKeys(Table):
    """The keys of all owners."""

    def add(self, token: ApiKey) -> bool:
        """Add a key. Return False if the owner has one of that name."""
        return self._exists(
            f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name",
            (token.token_hash, token.owner, token.name, token.at, token.used_at),
        )

    def get(self, token_hash: str) -> ApiKey | None:
        row = self._first(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,))
        return ApiKey(*row) if row else None

    def any_exist(self) -> bool:
        """Return whether any key exists."""
        return self._exists("SELECT 1 FROM tokens LIMIT 1")

    def all(self) -> tuple[ApiKey, ...]:
        """Return all keys by owner and name."""
        return tuple(ApiKey(*row) for row in self._execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY owner, name"))

    def record_use(self, token_hash: str, now: float) -> None:
        """Record the time of the last use."""
        self._execute("UPDATE tokens SET used_at = ? WHERE token_hash = ?", (now, token_hash))

    def remove(self, owner: str, name: str) -> bool:
        """Remove a key. Return False if there is none."""
        return self._exists("DELETE FROM tokens WHERE owner = ? AND name = ? RETURNING name", (owner, name))
