"""The commands about the conversation one is in, and the answer that is being written in it."""

from __future__ import annotations

from everthread.commands.desk import NONE_YET, Desk, Said, counted, listed, name_of, refused, session_here
from everthread.domain import titles
from everthread.domain.model import InboxRow, Slot
from everthread.ports import UnitOfWork


async def title(desk: Desk, wanted: str) -> Said:
    session = await session_here(desk)
    if session is None:
        return refused(NONE_YET)
    if not wanted:
        return Said(f'This is "{session.title}".' if session.title else "This conversation has no title yet.")
    if titles.clean(wanted) == session.title:
        return refused(f'This is "{session.title}" already.')
    given = await desk.lifecycle.rename(session.id, titles.clean(wanted), owner=desk.owner)
    return Said(f'This is "{given}" now.')


async def stop(desk: Desk, _: str) -> Said:
    session = await session_here(desk)
    if session is not None and desk.agent.stop(session.id):
        return Said("Stopped; what there is of the answer is kept. /undo takes it back.")
    if desk.stop_next is not None and await desk.stop_next():
        return Said("Stopped before it was begun; the message is kept. /retry asks it again.")
    if session is not None and await desk.store.read(lambda uow: uow.slots.live(session.id)):
        return refused("The answer is being written by another process; stop it there.")
    return refused("Nothing is running here.")


async def status(desk: Desk, _: str) -> Said:
    session = await session_here(desk)

    def look(uow: UnitOfWork) -> tuple[int, Slot | None, tuple[InboxRow, ...]]:
        turns = uow.turns.count(session) if session else 0
        return turns, uow.slots.live(session.id) if session else None, uow.inbox.waiting(desk.key)

    turns, running, waiting = await desk.store.read(look)
    named = f" ({session.id})" if session and session.title else ""
    lines = [f"Conversation: {name_of(session)}{named}, {counted(turns, 'turn')}" if session else NONE_YET]
    lines.append("An answer is being written." if running else "Nothing is running.")
    if session is not None and (compression := await desk.agent.compression_status(session.id, whole=not desk.guest)):
        lines.append(compression)
    if waiting:
        lines.append(f"{counted(len(waiting), 'message')} waiting: {listed(waiting)}")
    for provider in () if desk.guest else await desk.memory.journal.status():
        if provider.name in desk.memory.names:
            lanes = provider.lanes
            lines.append(f"Memory {provider.name}: {lanes.waiting_entries} to deliver, {lanes.parked} parked")
    return Said("\n".join(lines))


async def leave(desk: Desk, _: str) -> Said:
    return Said("", quits=True)
