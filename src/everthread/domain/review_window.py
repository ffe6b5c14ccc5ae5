"""Which turns a background review looks at. Pure rules on turn numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

_MARK = re.compile(r"review-(\d{1,18})-(\d{1,18})")


class Window(Struct, frozen=True):
    """The turns of a session, the last one included, that one review is about."""

    from_turn: int
    to_turn: int

    @property
    def mark(self) -> str:
        """What stands in place of a turn's id with whatever a review writes or costs."""
        return f"review-{self.from_turn}-{self.to_turn}"

    @property
    def words(self) -> str:
        """As people read it."""
        return f"turn {self.to_turn}" if self.from_turn == self.to_turn else f"turns {self.from_turn} to {self.to_turn}"

    @classmethod
    def marked(cls, turn_id: str | None) -> Window | None:
        """The window of a mark; none for the id of a turn."""
        found = _MARK.fullmatch(turn_id or "")
        return cls(int(found[1]), int(found[2])) if found else None


class ReviewState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """A turn of it was taken back: what is left of it belongs to the next window."""
    FAILED = "failed"
    """Given up after some attempts."""


class Review(Struct, frozen=True):
    """The right to carry out a review, until somebody else gets a higher fence."""

    session_id: str
    window: Window
    fence: int
    burials: int
    """How often something of the owner's had been forgotten when it began: what it has read may hold what was since."""


def due(reviewed_to: int, shown: Sequence[int], every: int) -> Window | None:
    """The window that is full with the newest of these turns, the last `every` that the session shows, if one is."""
    if not every or len(shown) < every or min(shown) <= reviewed_to:
        return None
    return Window(reviewed_to + 1, max(shown))


def rest(reviewed_to: int, shown: Sequence[int]) -> Window | None:
    """The window of whatever is left when a session is left; none if all of it has been seen to."""
    newest = max(shown, default=0)
    return Window(reviewed_to + 1, newest) if newest > reviewed_to else None
