"""Turns and what is found in them, as the store keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from everthread.domain.events import View
from everthread.domain.model import Message, Prefix, Session, Turn, TurnStatus


class Hit(Struct, frozen=True):
    """A message that a search found, with where it stands."""

    session_id: str
    number: int
    index: int
    role: str
    content: str
    at: float
    score: float = 0.0
    """From 0 to 1 how much it has to do with a question; of other searches 0."""


class Turns(Protocol):
    def add(
        self,
        session: Session,
        number: int,
        turn_id: str,
        status: TurnStatus,
        messages: Sequence[Message],
        at: float,
    ) -> None: ...
    def view(self, session: Session, *, as_of_seq: int | None = None, up_to: int | None = None, after: int = 0) -> View:
        """What the session shows, of the turns numbered `after + 1 .. up_to`."""
        ...

    def view_for_people(self, session: Session, *, up_to: int | None = None, after: int = 0) -> View:
        """The same, and among its turns the messages that were set aside: whoever wrote them looks for them."""
        ...

    def last_visible(self, session: Session, count: int) -> tuple[int, ...]: ...
    def count(self, session: Session) -> int:
        """How many turns the session shows, inherited ones included, without reading them."""
        ...

    def get(self, session_id: str, number: int) -> Turn | None: ...
    def asked(self, session_id: str, limit: int, chars_max: int = 10_000) -> tuple[tuple[float, str], ...]:
        """What the session's own turns began with and when, the latest first; nothing longer than that."""
        ...

    def own(self, session_id: str, *, after: int, up_to: int, limit: int) -> tuple[Turn, ...]:
        """The session's own turns, of whatever status and shown or not."""
        ...

    def number(self, session_id: str, turn_id: str) -> int | None:
        """Which turn of the session that is; none if it was not committed there."""
        ...

    def hide(self, session: Session, numbers: Sequence[int], seq: int) -> None: ...
    def put_prefix(self, prefix: Prefix, owner: str) -> None: ...
    def prefix(self, session_id: str) -> Prefix | None: ...
    def prefix_number(self, session_id: str) -> int:
        """The number of the session's newest prefix, without reading it; 0 if there is none."""
        ...

    def index(self) -> None:
        """Make the words of all messages searchable; it is also done now and then when turns are added."""
        ...

    def is_indexed(self, owner: str | None = None, beside: str | None = None) -> bool:
        """Whether the words of all messages are searchable, or of the owner's, leaving out the session `beside`."""
        ...

    def search(self, owner: str, query: str, *, limit: int, ranked: bool = False) -> tuple[Hit, ...]:
        """The owner's messages that hold all terms of the query, newest or best first; none of an undone turn."""
        ...

    def is_anything_beside(self, owner: str, session: Session) -> bool:
        """Whether the owner may have said anything that the session does not show; said without looking far."""
        ...

    def recall(self, owner: str, question: str, *, limit: int, beside: Session | None = None) -> tuple[Hit, ...]:
        """What was said that has to do with a question as people ask it, best first, one message of a turn.

        A message counts by how many of the question's telling words it holds, how rare they are, and how short it is.
        Only what a person or the model said in a chat; not what was undone or set aside; nothing of what the session
        `beside` shows, nor of what was undone there.
        """
        ...
