"""What was said last in a conversation, to show somebody who comes back to it."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.domain.model import TurnStatus


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn in short. Its texts are on one line each, with nothing in them that could move a cursor."""

    asked: str
    answered: str
    tools: tuple[tuple[str, int], ...] = ()
    """Each tool that was called, and how often, in the order of their first calls."""
    status: TurnStatus = TurnStatus.DONE


@dataclass(frozen=True, slots=True)
class Recap:
    session_id: str
    title: str
    """Empty if it has none."""
    turns: int
    active_at: float
    exchanges: tuple[Exchange, ...] = ()
    """The last ones, oldest first."""
