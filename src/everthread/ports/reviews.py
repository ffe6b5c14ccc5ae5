"""Background reviews, and rests from compression, as the store keeps them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from everthread.domain.review import Review, ReviewState, Window


class ReviewRow(Struct, frozen=True):
    """What is known of the review of some turns."""

    session_id: str
    window: Window
    state: ReviewState
    fence: int
    """How often somebody took it."""
    due_at: float


class Reviews(Protocol):
    """Background reviews of sessions' turns, each window once."""

    def add(self, session_id: str, window: Window, now: float) -> None:
        """Have the turns reviewed. Nothing happens if they are or were, unless that was stopped."""
        ...

    def reviewed_to(self, session_id: str) -> int:
        """The last turn of the session that is in some window which was not stopped; 0 if there is none."""
        ...

    def take(self, holder: str, now: float) -> tuple[str, Window, int] | None:
        """The longest due of the reviews that nobody who is alive carries out: session, window, fence."""
        ...

    def is_due(self, now: float) -> bool:
        """Whether there is one to take, without the cost of writing."""
        ...

    def is_held(self, review: Review) -> bool:
        """Whether it is still to be carried out by whoever took it: not stopped, forgotten or taken over."""
        ...

    def end(self, review: Review, state: ReviewState, due_at: float = 0.0) -> None:
        """Write down what became of it, if it is still held; one that waits again is due then."""
        ...

    def stop(self, session_id: str, turns: Window) -> None:
        """Stop what waits or runs and is about some of these turns."""
        ...

    def begin_anew(self, session_id: str, turns: Window, now: float) -> None:
        """Have those carried out once more that are over and were about some of these turns."""
        ...

    def of_session(self, session_id: str) -> tuple[ReviewRow, ...]: ...


class Rest(Struct, frozen=True):
    """Why a session is not compressed for now: a summary failed, or the last ones saved too little."""

    session_id: str
    model: str
    """The one that it was with."""
    poor: int
    """Passes in a row that saved too little."""
    cool_until: float
    problem: str


class Rests(Protocol):
    """Why sessions are not compressed for now."""

    def get(self, session_id: str) -> Rest | None: ...
    def put(self, rest: Rest) -> None: ...
    def drop(self, session_id: str) -> None: ...
