"""Built-in memory: search turns and notes in our own store.

It needs no deliveries, because it reads the store: it is always up to date, and forgotten or rewound turns disappear
from it immediately.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everthread.domain.model import NoteAuthor, NoteTarget, SessionRef
from everthread.domain.note_provenance import author_of, is_owners
from everthread.domain.recall_scope import RecallScope
from everthread.domain.search_terms import count_matches, excerpt, keywords
from everthread.ports.clock import Clock
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from everthread.store.recall_scope import DEFAULT_RECALL_SCOPES, RecallScopes
from everthread.store.unit_of_work import Store, UnitOfWork

BUILTIN = "builtin"
SIDE_CHARS_MAX = 300
"""Longest excerpt of each side of a turn."""
NOTE_CHARS_MAX = 600
ITEMS_MAX = 12
"""More would not fit in the prompt."""

# A turn of today scores a quarter more than one of years ago; the bonus halves every 60 days.
_RECENCY_BONUS = 0.25
_HALF_LIFE_S = 60 * 86_400.0
# Items that score less than this share of the best one are left out.
_SCORE_SHARE_MIN = 0.2

_AUTHORS = {
    NoteAuthor.OWNER: "by a member of this group",
    NoteAuthor.OPERATOR: "by the operator",
    NoteAuthor.TOOL: "by the agent",
    NoteAuthor.REVIEW: "by a review",
    NoteAuthor.IMPORT: "by an import",
}

Terms = list[tuple[str, bool]]


class BuiltinMemory(MemoryProvider):
    def __init__(self, store: Store, clock: Clock, scopes: RecallScopes = DEFAULT_RECALL_SCOPES) -> None:
        super().__init__()
        self.name = BUILTIN
        self.capabilities = Capability.RECALL | Capability.GROUPS
        self.scorecard = Scorecard(
            redelivery="nothing is delivered: it reads the store",
            order="nothing is delivered: it reads the store",
            forget="nothing to do: what is forgotten leaves the store that it reads",
        )
        self._store = store
        self._clock = clock
        self._scopes = scopes

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        """Find turns of the owner's other sessions, turns that this session no longer shows, and notes.

        In a group chat, only those of that chat.
        """
        # Many users have one session and no notes: check that inline, without a thread.
        if not await self._store.read_inline(lambda uow: _is_anything_to_find(uow, ref)):
            return ()
        terms = keywords(query)
        if not terms:
            return ()
        now = self._clock.now()
        count = min(limit, ITEMS_MAX)

        def search(uow: UnitOfWork) -> tuple[RecallItem, ...]:
            return _search(uow, query, terms, ref, self._scopes.of(uow, ref), count, now)

        # Index new turns only if another session has some.
        found = await self._store.read(
            lambda uow: search(uow) if uow.search.is_indexed(ref.owner, beside=ref.session_id) else None
        )
        if found is None:
            await self._store.index()
            found = await self._store.read(search)
        return found


def _is_anything_to_find(uow: UnitOfWork, ref: SessionRef) -> bool:
    session = uow.sessions.get(ref.session_id)
    if session is None or uow.search.has_other_conversations(ref.owner, session):
        return True
    return any(uow.notes.current(ref.owner, target) for target in NoteTarget)


def _search(
    uow: UnitOfWork, query: str, terms: Terms, ref: SessionRef, scope: RecallScope, limit: int, now: float
) -> tuple[RecallItem, ...]:
    found = sorted(
        (*_turns(uow, query, ref, scope, limit, now), *_notes(uow, terms, scope)),
        key=lambda item: item.score,
        reverse=True,
    )
    worthwhile = [item for item in found[:limit] if item.score >= _SCORE_SHARE_MIN * found[0].score]
    return tuple(item if item.turn is None else replace(item, text=_excerpts(uow, item, terms)) for item in worthwhile)


def _turns(
    uow: UnitOfWork, query: str, ref: SessionRef, scope: RecallScope, limit: int, now: float
) -> list[RecallItem]:
    """Find turns, without their text, which is read only for the chosen ones."""
    session = uow.sessions.get(ref.session_id)
    beside = session if session is not None and session.owner == ref.owner else None
    # Read more than needed: the recency bonus may change the order.
    hits = uow.search.recall(ref.owner, query, limit=limit + ITEMS_MAX, beside=beside, chat=scope.chat)
    return [
        RecallItem("", hit.score * _freshness(now - hit.at), session_id=hit.session_id, turn=hit.number, at=hit.at)
        for hit in hits
    ]


def _notes(uow: UnitOfWork, terms: Terms, scope: RecallScope) -> list[RecallItem]:
    notes = [note for target in NoteTarget for note in uow.notes.visible(scope, target)]
    counted = [(note, count_matches(note.content, terms)) for note in notes]
    return [
        RecallItem(
            f"noted: {excerpt(note.content, terms, NOTE_CHARS_MAX)}",
            count / len(terms),
            session_id=note.session_id,
            at=note.at,
            note_id=note.note_id,
            author="" if is_owners(note) else _AUTHORS[author_of(note)],
        )
        for note, count in counted
        if count
    ]


def _freshness(age_s: float) -> float:
    return (1 + _RECENCY_BONUS * 0.5 ** (max(age_s, 0.0) / _HALF_LIFE_S)) / (1 + _RECENCY_BONUS)


def _excerpts(uow: UnitOfWork, item: RecallItem, terms: Terms) -> str:
    """Return excerpts of both sides of the turn around the terms: an answer means little without its question."""
    turn = uow.turns.get(item.session_id, item.turn or 0)
    sides = (("user", turn.user_text), ("assistant", turn.assistant_text)) if turn else ()
    return "\n".join(f"{who}: {excerpt(text, terms, SIDE_CHARS_MAX)}" for who, text in sides if text.strip())
