"""Keys of the HTTP interface, as the store keeps them: never the key itself."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Token(Struct, frozen=True):
    token_hash: str
    owner: str
    """Whose conversations it opens."""
    name: str
    """One of a kind among the owner's."""
    at: float
    used_at: float | None = None
    """About when it was used last."""


class Tokens(Protocol):
    def add(self, token: Token) -> bool:
        """False if the owner has one of that name."""
        ...

    def get(self, token_hash: str) -> Token | None: ...
    def are_any(self) -> bool: ...
    def all(self) -> tuple[Token, ...]:
        """By owner and name."""
        ...

    def used(self, token_hash: str, now: float) -> None: ...
    def remove(self, owner: str, name: str) -> bool:
        """False if there is none."""
        ...
