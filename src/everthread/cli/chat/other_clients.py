"""What is said in this conversation elsewhere, in another terminal or on a platform, while one is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everthread.domain.model import Session, SessionKey, Turn
from everthread.store.unit_of_work import Store, UnitOfWork

AT_ONCE_MAX = 5


class NewTurns(NamedTuple):
    turns: Sequence[Turn] = ()
    """The last of those that came from elsewhere, oldest first."""
    earlier: int = 0
    """How many came before them."""


class OtherClients:
    """Knows which turns were seen here. Where one is, is looked up each time."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store = store
        self._key = key
        self._seen: dict[str, int] = {}
        """By session, the last turn that was there when one came, or was shown since. Whoever leaves comes anew."""
        self._own: set[tuple[str, int]] = set()

    def mine(self, session_id: str, number: int) -> None:
        """That turn was answered here."""
        if session_id not in self._seen:
            self._seen = {session_id: number}
        self._own.add((session_id, number))

    async def news(self) -> NewTurns:
        """The turns that came from elsewhere since the last look; of many, the last."""
        return await self._store.read_inline(self._look)

    def _look(self, uow: UnitOfWork) -> NewTurns:
        ref = uow.sessions.ref(self._key)
        session = uow.sessions.get(ref.session_id) if ref else None
        if session is None:
            return NewTurns()
        seen = self._seen.get(session.id, session.last_turn)
        numbers = [n for n in _since(uow, session, seen) if (session.id, n) not in self._own]
        self._seen, self._own = {session.id: session.last_turn}, set()
        last = [turn for number in numbers[-AT_ONCE_MAX:] if (turn := uow.turns.get(session.id, number))]
        return NewTurns(last, len(numbers) - len(last))


def _since(uow: UnitOfWork, session: Session, seen: int) -> list[int]:
    if session.last_turn <= seen:
        return []
    return [number for number in uow.turns.last_visible(session, session.last_turn - seen) if number > seen]
