"""Keys of the HTTP interface."""

from __future__ import annotations

from everthread.adapters.stores.tables.rows import Execute, first, run
from everthread.ports.tokens import Token

_COLUMNS = "token_hash, owner, name, at, used_at"


class TokenTables:
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def add(self, token: Token) -> bool:
        added = self._execute(
            f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING name",
            (token.token_hash, token.owner, token.name, token.at, token.used_at),
        )
        return first(added) is not None

    def get(self, token_hash: str) -> Token | None:
        row = first(self._execute(f"SELECT {_COLUMNS} FROM tokens WHERE token_hash = ?", (token_hash,)))
        return Token(*row) if row else None

    def are_any(self) -> bool:
        return first(self._execute("SELECT 1 FROM tokens LIMIT 1")) is not None

    def all(self) -> tuple[Token, ...]:
        return tuple(Token(*row) for row in self._execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY owner, name"))

    def used(self, token_hash: str, now: float) -> None:
        run(self._execute("UPDATE tokens SET used_at = ? WHERE token_hash = ?", (now, token_hash)))

    def remove(self, owner: str, name: str) -> bool:
        removed = self._execute("DELETE FROM tokens WHERE owner = ? AND name = ? RETURNING name", (owner, name))
        return first(removed) is not None
