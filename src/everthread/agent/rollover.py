"""Going on in a continuation: through the door, if what was made still holds, and with the context engine told."""

from __future__ import annotations

import asyncio
import logging

from everthread.agent.passes import Made
from everthread.domain.boundary import Refusal
from everthread.domain.model import SessionKey, SessionRef
from everthread.lifecycle import Lifecycle
from everthread.ports import Clock, ContextEngine, Store, UnitOfWork
from everthread.ports.context import Rollover
from everthread.ports.store import Incident

log = logging.getLogger("everthread.agent")

TELL_S_MAX = 5.0


async def cross(store: Store, lifecycle: Lifecycle, made: Made) -> SessionRef | Refusal:
    """Where the conversation goes on, or why it does not."""
    key = await store.peek(lambda uow: _key_on(uow, made.ref))
    crossing = await lifecycle.cross(key, made.boundary, owner=made.ref.owner, actor="compression")
    return crossing.refusal or crossing.ref or Refusal.STALE


def _key_on(uow: UnitOfWork, ref: SessionRef) -> SessionKey:
    """A key that is on the session, as the one that asked may have left it to others."""
    keys = uow.sessions.keys_on(ref.session_id)
    return ref.key if ref.key in keys or not keys else keys[0]


async def tell(engine: ContextEngine, store: Store, clock: Clock, made: Made, entered: SessionRef) -> None:
    """Tell the engine, within a bound. What goes wrong is an incident: the conversation has gone on."""
    boundary, mechanical = made.boundary, bool(made.instead_because)
    rollover = Rollover(made.ref, entered, boundary.summary, boundary.covers_to, made.turns, mechanical)
    try:
        async with asyncio.timeout(TELL_S_MAX):
            await engine.on_rollover(rollover)
    except Exception as error:  # noqa: BLE001 - an engine may come from anybody
        text = f"the context engine failed to follow: {str(error) or repr(error)}"
        log.warning("session %s: %s", entered.session_id, text)
        incident = Incident(clock.now(), "context_engine", entered.session_id, text)
        await store.write(lambda uow: uow.lanes.add_incident(incident))
