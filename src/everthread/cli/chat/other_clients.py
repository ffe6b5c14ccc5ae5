"""Find turns that other clients, terminals or platforms, added to the current session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everthread.domain.model import Session, SessionKey, Turn
from everthread.store.unit_of_work import Store, UnitOfWork

TURNS_MAX = 5


class NewTurns(NamedTuple):
    turns: Sequence[Turn] = ()
    """The last new turns of other clients, oldest first."""
    earlier: int = 0
    """Number of new turns before `turns`."""


class OtherClients:
    """Tracks the turns that this terminal has shown. The current session is read on each call."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store = store
        self._key = key
        self._seen: dict[str, int] = {}
        """The last turn shown or present on entry, for the current session only. Leaving a session drops its entry."""
        self._own: set[tuple[str, int]] = set()

    def mark_own(self, session_id: str, number: int) -> None:
        """Mark a turn as answered by this terminal."""
        if session_id not in self._seen:
            self._seen = {session_id: number}
        self._own.add((session_id, number))

    async def read_new(self) -> NewTurns:
        """Return the turns of other clients since the last call, at most the last `TURNS_MAX`."""
        return await self._store.read_inline(self._read)

    def _read(self, uow: UnitOfWork) -> NewTurns:
        ref = uow.sessions.ref(self._key)
        session = uow.sessions.get(ref.session_id) if ref else None
        if session is None:
            return NewTurns()
        seen = self._seen.get(session.id, session.last_turn)
        numbers = [n for n in _since(uow, session, seen) if (session.id, n) not in self._own]
        self._seen, self._own = {session.id: session.last_turn}, set()
        last = [turn for number in numbers[-TURNS_MAX:] if (turn := uow.turns.get(session.id, number))]
        return NewTurns(last, len(numbers) - len(last))


def _since(uow: UnitOfWork, session: Session, seen: int) -> list[int]:
    if session.last_turn <= seen:
        return []
    return [number for number in uow.turns.last_visible(session, session.last_turn - seen) if number > seen]
