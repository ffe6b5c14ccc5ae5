"""The turns that a background review covers. Pure rules on turn numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

RETRY_S_MAX = 1200.0
"""The longest wait before a failed review is tried again."""
_MARK = re.compile(r"review-(\d{1,18})-(\d{1,18})")


class ReviewWindow(Struct, frozen=True):
    """The range of turns that one review covers, inclusive at both ends."""

    from_turn: int
    to_turn: int

    @property
    def mark(self) -> str:
        """Return the id that note versions and costs of the review have in place of a turn id."""
        return f"review-{self.from_turn}-{self.to_turn}"

    @property
    def label(self) -> str:
        """Return the text for display."""
        return f"turn {self.to_turn}" if self.from_turn == self.to_turn else f"turns {self.from_turn} to {self.to_turn}"

    @classmethod
    def from_mark(cls, turn_id: str | None) -> ReviewWindow | None:
        """Return the window of a mark; None for the id of a turn."""
        found = _MARK.fullmatch(turn_id or "")
        return cls(int(found[1]), int(found[2])) if found else None


class ReviewState(StrEnum):
    """The state of a review."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """A turn of the window was rewound. The other turns belong to the next window."""
    FAILED = "failed"
    """The maximum number of attempts was reached."""


class Review(Struct, frozen=True):
    """The right to run a review, valid until another holder gets a higher fence."""

    session_id: str
    window: ReviewWindow
    fence: int
    forget_count: int
    """The owner's number of forget requests at the start. If it has grown, the review may have read forgotten text."""


def due_window(reviewed_to: int, shown: Sequence[int], every: int) -> ReviewWindow | None:
    """Return the next window if it is full: all of the last `every` visible turns are not reviewed yet.

    `shown` has the numbers of these turns. 0 for `every` disables reviews.
    """
    if not every or len(shown) < every or min(shown) <= reviewed_to:
        return None
    return ReviewWindow(reviewed_to + 1, max(shown))


def remaining_window(reviewed_to: int, shown: Sequence[int]) -> ReviewWindow | None:
    """Return the window of the remaining turns when a key leaves the session; None if all turns are reviewed."""
    newest = max(shown, default=0)
    return ReviewWindow(reviewed_to + 1, newest) if newest > reviewed_to else None
