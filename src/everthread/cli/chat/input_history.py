"""The input history of the chat: recent messages of the user, from the store."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.domain.model import SessionKind
from everthread.store.unit_of_work import Store, UnitOfWork

HISTORY_MAX = 200
_SESSIONS_MAX = 20


async def read_history(store: Store, owner: str) -> Sequence[str]:
    """Return the owner's recent messages from all sessions, newest first, without duplicates."""

    def read(uow: UnitOfWork) -> list[str]:
        recent = uow.sessions.recent(owner=owner, limit=_SESSIONS_MAX, kind=SessionKind.CHAT.value)
        messages = [message for session in recent for message in uow.turns.user_messages(session.id, HISTORY_MAX)]
        messages.sort(key=lambda message: -message[0])
        return list(dict.fromkeys(text for _, text in messages))[:HISTORY_MAX]

    return await store.read_inline(read)
