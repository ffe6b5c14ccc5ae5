"""Keep the status line up to date and show the turns of other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everthread.cli.context import CliRuntime
from everthread.cli.status_line import Status
from everthread.cli.view import ChatView
from everthread.domain.errors import EverthreadError
from everthread.domain.model import SessionKey
from everthread.domain.text_format import pluralize, quote_start
from everthread.lifecycle.spend import conversation_usage
from everthread.store.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from everthread.cli.chat.turns import ChatTurns

REFRESH_S = 3.0


async def watch_status(
    runtime: CliRuntime, key: SessionKey, view: ChatView, turns: ChatTurns, changed: asyncio.Event
) -> None:
    """Refresh the status line after each change here, and every `REFRESH_S` seconds."""
    while True:
        changed.clear()
        view.show_status(await read_status(runtime, key, turns.model, turns.context))
        if not turns.running:
            await _show_other_clients(view, turns)
        try:
            async with asyncio.timeout(REFRESH_S):
                await changed.wait()
        except TimeoutError:
            # No local change; other clients may have added turns.
            pass


async def _show_other_clients(view: ChatView, turns: ChatTurns) -> None:
    new = await turns.others.read_new()
    if new.earlier:
        session_id = new.turns[-1].session_id if new.turns else ""
        view.show_notice(
            f"{pluralize(new.earlier, 'earlier turn')} of other clients not shown; "
            f"`everthread sessions show {session_id}` shows all turns."
        )
    for turn in new.turns:
        view.show_notice(f"From another client: {quote_start(turn.user_text)}")
        view.show_answer(turn.assistant_text)


async def read_status(runtime: CliRuntime, key: SessionKey, model: str, context: Mapping[str, int]) -> Status:
    """Read the status of the session that the key is bound to."""
    try:
        choice = runtime.choices(model)[0]
        name, context_tokens_max = choice.name, choice.traits.context_tokens
    except EverthreadError:
        name, context_tokens_max = "no model", 0

    def read(uow: UnitOfWork) -> Status:
        ref = uow.sessions.ref(key)
        session = uow.sessions.get(ref.session_id) if ref else None
        return Status(
            title=(session.title or "untitled") if session else "",
            model=name,
            context_tokens=context.get(session.id, 0) if session else 0,
            context_tokens_max=context_tokens_max,
            waiting=len(uow.inbox.waiting(key)),
            cost=sum(used.amount for used in conversation_usage(uow, session)) if session else 0.0,
        )

    return replace(await runtime.store.read_inline(read), memory=await _memory_state(runtime))


async def _memory_state(runtime: CliRuntime) -> str:
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
