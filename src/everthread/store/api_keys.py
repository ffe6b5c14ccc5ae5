"""Keys of the HTTP interface, as the store keeps them: never the key itself.

Keys of the HTTP interface.
"""

from __future__ import annotations

from msgspec import Struct

from everthread.store.database import Execute
from everthread.store.sql import first


class ApiKey(Struct, frozen=True):
    token_hash: str
    owner: str
    """Whose conversations it opens."""
    name: str
    """One of a kind among the owner's."""
    at: float
    used_at: float | None = None
    """About when it was used last."""


_COLUMNS = "token_hash, owner, name, at, used_at"


class ApiKeys:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def add(self, token: ApiKey) -> bool:
        """False if the owner has one of that name."""
        added = self._execute(
            f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name",
            (token.token_hash, token.owner, token.name, token.at, token.used_at),
        )
        return first(added) is not None

    def get(self, token_hash: str) -> ApiKey | None:
        row = first(self._execute(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,)))
        return ApiKey(*row) if row else None

    def are_any(self) -> bool:
        return first(self._execute("SELECT 1 FROM tokens LIMIT 1")) is not None

    def all(self) -> tuple[ApiKey, ...]:
        """By owner and name."""
        return tuple(ApiKey(*row) for row in self._execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY owner, name"))

    def used(self, token_hash: str, now: float) -> None:
        self._execute("UPDATE tokens SET used_at = ? WHERE token_hash = ?", (now, token_hash))

    def remove(self, owner: str, name: str) -> bool:
        """False if there is none."""
        removed = self._execute("DELETE FROM tokens WHERE owner = ? AND name = ? RETURNING name", (owner, name))
        return first(removed) is not None
