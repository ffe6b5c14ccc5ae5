"""Read the status line and the input history from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from everthread.cli.context import CliRuntime
from everthread.cli.status_line import Status
from everthread.domain.errors import EverthreadError
from everthread.domain.model import Kind, Session, SessionKey
from everthread.lifecycle.spend import conversation_usage
from everthread.store.unit_of_work import Store, UnitOfWork

ASKED_MAX = 200
_SESSIONS_MAX = 20


async def read_status(runtime: CliRuntime, key: SessionKey, model: str, context: Mapping[str, int]) -> Status:
    try:
        choice = runtime.choices(model)[0]
        name, room = choice.name, choice.traits.context_tokens
    except EverthreadError:
        name, room = "no model", 0

    def look(uow: UnitOfWork) -> Status:
        ref = uow.sessions.ref(key)
        session = uow.sessions.get(ref.session_id) if ref else None
        return Status(
            title=(session.title or "untitled") if session else "",
            model=name,
            context_tokens=context.get(session.id, 0) if session else 0,
            context_tokens_max=room,
            waiting=len(uow.inbox.waiting(key)),
            cost=_cost(uow, session) if session else 0.0,
        )

    return replace(await runtime.store.read_inline(look), memory=await _memory(runtime))


def _cost(uow: UnitOfWork, session: Session) -> float:
    return sum(used.amount for used in conversation_usage(uow, session))


async def _memory(runtime: CliRuntime) -> str:
    """Describe the worst problem of the memory providers in use, else the backlog, else "memory ok"."""
    now = runtime.clock.now()
    states = [each for each in await runtime.memory.journal.status() if each.name in runtime.memory.names]
    for state in states:
        if state.lanes.parked:
            return f"{state.name}: {state.lanes.parked} parked"
    for state in states:
        if state.breaker_open_until is not None and state.breaker_open_until > now:
            return f"{state.name}: unreachable"
    waiting = sum(state.lanes.waiting_entries for state in states)
    return f"memory: {waiting} to deliver" if waiting else "memory ok"


async def read_history(store: Store, owner: str) -> Sequence[str]:
    """Return the owner's recent messages from all sessions, newest first, without duplicates."""

    def look(uow: UnitOfWork) -> list[str]:
        recent = uow.sessions.recent(owner=owner, limit=_SESSIONS_MAX, kind=Kind.CHAT.value)
        asked = [said for session in recent for said in uow.turns.asked(session.id, ASKED_MAX)]
        asked.sort(key=lambda said: -said[0])
        return list(dict.fromkeys(text for _, text in asked))[:ASKED_MAX]

    return await store.read_inline(look)
