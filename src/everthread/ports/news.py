"""What has happened to an owner's conversations, for whoever follows them. Read from what is stored anyway."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.model import SessionKey, TurnStatus


class BoundaryRow(Struct, frozen=True):
    """One crossing, as the audit trail keeps it."""

    kind: str
    key: SessionKey
    owner: str
    from_session: str | None
    to_session: str | None
    epoch: int
    actor: str
    at: float
    id: int = 0


class Mark(Struct, frozen=True):
    """How far somebody has followed: the last boundary, and the last position of the logs."""

    boundary: int = 0
    pos: int = 0


class TurnNews(Struct, frozen=True):
    """A turn was committed."""

    pos: int
    session_id: str
    key: SessionKey
    number: int
    turn_id: str
    status: TurnStatus
    at: float


class News(Protocol):
    def end(self) -> Mark:
        """Behind all that has happened so far, to anybody."""
        ...

    def after(self, owner: str, mark: Mark, window: int) -> tuple[tuple[BoundaryRow | TurnNews, ...], Mark]:
        """What happened to the owner's conversations, oldest first, and how far was looked: `window` rows of either
        kind, whosesoever they are.
        """
        ...
