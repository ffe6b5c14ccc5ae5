"""The memory that is always there: what was said and noted, found in the store itself.

Nothing is handed to it, since all it could be told is stored already; so it is never behind, and what was forgotten or
undone is gone from it at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everthread.domain.model import NoteTarget, SessionRef
from everthread.domain.search_terms import excerpt, matched, telling
from everthread.ports.clock import Clock
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from everthread.store.unit_of_work import Store, UnitOfWork

BUILTIN = "builtin"
SAID_CHARS_MAX = 300
"""Of what the person said in a turn, and of the answer."""
NOTE_CHARS_MAX = 600
ITEMS_MAX = 12
"""More would not fit in what a prompt has room for."""

# What was said today counts a quarter more than the same said years ago; half of that is gone in two months.
_NEWER = 0.25
_HALF_LIFE_S = 60 * 86_400.0
# What has much less to do with the question than the best of it is left out.
_OF_THE_BEST = 0.2

Terms = list[tuple[str, bool]]


class BuiltinMemory(MemoryProvider):
    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        self.name = BUILTIN
        self.capabilities = Capability.RECALL
        self.scorecard = Scorecard(
            redelivery="nothing is delivered to it: it reads what is stored",
            order="nothing is delivered to it: it reads what is stored",
            forget="nothing is left to do: what is forgotten leaves the store that it reads",
        )
        self._store = store
        self._clock = clock

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        """What the owner and the model said in other conversations, or earlier than this one shows, and the notes."""
        # Many people have one conversation and no notes: that is seen at once, and costs them no thread.
        if not await self._store.read_inline(lambda uow: _is_anything_to_find(uow, ref)):
            return ()
        sought = telling(query)
        if not sought:
            return ()
        now = self._clock.now()
        most = min(limit, ITEMS_MAX)

        def recalled(uow: UnitOfWork) -> tuple[RecallItem, ...]:
            return _recalled(uow, query, sought, ref, most, now)

        # Whatever else is new is what this session shows: not worth a write.
        found = await self._store.read(
            lambda uow: recalled(uow) if uow.search.is_indexed(ref.owner, beside=ref.session_id) else None
        )
        if found is None:
            await self._store.index()
            found = await self._store.read(recalled)
        return found


def _is_anything_to_find(uow: UnitOfWork, ref: SessionRef) -> bool:
    session = uow.sessions.get(ref.session_id)
    if session is None or uow.search.is_anything_beside(ref.owner, session):
        return True
    return any(uow.notes.current(ref.owner, target) for target in NoteTarget)


def _recalled(
    uow: UnitOfWork, query: str, sought: Terms, ref: SessionRef, limit: int, now: float
) -> tuple[RecallItem, ...]:
    found = sorted(
        (*_turns(uow, query, ref, limit, now), *_notes(uow, sought, ref.owner)),
        key=lambda item: item.score,
        reverse=True,
    )
    worthwhile = [item for item in found[:limit] if item.score >= _OF_THE_BEST * found[0].score]
    return tuple(item if item.turn is None else replace(item, text=_said(uow, item, sought)) for item in worthwhile)


def _turns(uow: UnitOfWork, query: str, ref: SessionRef, limit: int, now: float) -> list[RecallItem]:
    """Without their text, which is put together for those that are chosen."""
    session = uow.sessions.get(ref.session_id)
    beside = session if session is not None and session.owner == ref.owner else None
    # A few more than are wanted: the newer ones among them may move up.
    hits = uow.search.recall(ref.owner, query, limit=limit + ITEMS_MAX, beside=beside)
    return [
        RecallItem("", hit.score * _freshness(now - hit.at), session_id=hit.session_id, turn=hit.number, at=hit.at)
        for hit in hits
    ]


def _notes(uow: UnitOfWork, sought: Terms, owner: str) -> list[RecallItem]:
    notes = [note for target in NoteTarget for note in uow.notes.current(owner, target)]
    counted = [(note, matched(note.content, sought)) for note in notes]
    return [
        RecallItem(
            f"noted: {excerpt(note.content, sought, NOTE_CHARS_MAX)}",
            count / len(sought),
            session_id=note.session_id,
            at=note.at,
        )
        for note, count in counted
        if count
    ]


def _freshness(age_s: float) -> float:
    return (1 + _NEWER * 0.5 ** (max(age_s, 0.0) / _HALF_LIFE_S)) / (1 + _NEWER)


def _said(uow: UnitOfWork, item: RecallItem, sought: Terms) -> str:
    """Both sides of the turn, each around what was sought: an answer means little without what was asked."""
    turn = uow.turns.get(item.session_id, item.turn or 0)
    sides = (("user", turn.user_text), ("assistant", turn.assistant_text)) if turn else ()
    return "\n".join(f"{who}: {excerpt(text, sought, SAID_CHARS_MAX)}" for who, text in sides if text.strip())
