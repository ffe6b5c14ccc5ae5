"""The commands about the conversation one is in, and the answer that is being written in it."""

from __future__ import annotations

from everthread.commands.desk import Desk, Said, counted, listed, name_of, refused
from everthread.domain import titles
from everthread.domain.model import Inbound, InboxRow, InboxState, Session, Slot
from everthread.ports import UnitOfWork

_NONE_YET = "There is no conversation here yet; say something, or start one with /new TITLE."


async def title(desk: Desk, wanted: str) -> Said:
    session = await _here(desk)
    if session is None:
        return refused(_NONE_YET)
    if not wanted:
        return Said(f'This is "{session.title}".' if session.title else "This conversation has no title yet.")
    given = await desk.lifecycle.rename(session.id, titles.clean(wanted), owner=desk.owner)
    return Said(f'This is "{given}" now.')


async def stop(desk: Desk, _: str) -> Said:
    session = await _here(desk)
    if session is not None and desk.agent.stop(session.id):
        return Said("Stopped; what there is of the answer is kept. /undo takes it back.")
    if session is not None and await desk.store.read(lambda uow: uow.slots.live(session.id)):
        return refused("The answer is being written by another process; stop it there.")
    return refused("Nothing is running here.")


async def steer(desk: Desk, text: str) -> Said:
    if not text:
        return refused("Usage: /steer TEXT")
    row, _ = await desk.lifecycle.accept(Inbound(desk.key, desk.owner, text, desk.account, desk.update_id))
    if row.state is not InboxState.WAITING:
        return Said("This was taken up before.")
    session = await _here(desk)
    if session is not None and desk.agent.steer(session.id, row.id):
        return Said("Passed on; it is taken up at the next step.", wakes=True)
    return Said("Nothing is running here, so this is your next message.", wakes=True)


async def status(desk: Desk, _: str) -> Said:
    session = await _here(desk)

    def look(uow: UnitOfWork) -> tuple[int, Slot | None, tuple[InboxRow, ...]]:
        turns = len(uow.turns.last_visible(session, 2**31)) if session else 0
        return turns, uow.slots.live(session.id) if session else None, uow.inbox.waiting(desk.key)

    turns, running, waiting = await desk.store.read(look)
    lines = [f"Conversation: {name_of(session)}, {counted(turns, 'turn')}" if session else _NONE_YET]
    lines.append("An answer is being written." if running else "Nothing is running.")
    if waiting:
        lines.append(f"{counted(len(waiting), 'message')} waiting: {listed(waiting)}")
    for provider in await desk.memory.journal.status():
        if provider.name in desk.memory.names:
            lanes = provider.lanes
            lines.append(f"Memory {provider.name}: {lanes.waiting_entries} to deliver, {lanes.parked} parked")
    return Said("\n".join(lines))


async def leave(desk: Desk, _: str) -> Said:
    return Said("", quits=True)


async def _here(desk: Desk) -> Session | None:
    """The owner's session that the key is on."""
    ref = await desk.lifecycle.current(desk.key)
    if ref is None or ref.owner != desk.owner:
        return None
    return await desk.store.peek(lambda uow: uow.sessions.get(ref.session_id))
