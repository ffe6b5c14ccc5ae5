"""The commands that have something asked: once more, in its turn, or of the answer that is being written."""

from __future__ import annotations

from everthread.commands.desk import Desk, Said, listed, refused, session_here
from everthread.domain.model import Inbound, InboxRow, InboxState
from everthread.domain.wording import counted, excerpt
from everthread.ports import UnitOfWork

_LISTED_MAX = 20
_LINE_CHARS_MAX = 100


async def retry(desk: Desk, _: str) -> Said:
    again = await desk.lifecycle.ask_again(desk.key, owner=desk.owner, order=desk.order, user=desk.user)
    if again.row is None:
        return refused("There is nothing to ask again; say something first.")
    if again.crossing.cancelled and again.crossing.left:
        desk.agent.stop(again.crossing.left, "stopped by /retry")
    row, which = again.row, "was being written" if again.crossing.cancelled else "there was"
    before = [other for other in await desk.store.read(lambda uow: _waiting(uow, desk)) if other.id < row.id]
    after = f" It comes after what waits: {listed(before)}." if before else ""
    text = f"Asking again: {excerpt(row.inbound.text)}. The answer that {which} is hidden, and not remembered.{after}"
    return Said(text, wakes=True)


async def _accept(desk: Desk, text: str) -> tuple[InboxRow, bool]:
    inbound = Inbound(desk.key, desk.owner, text, desk.account, desk.update_id, user=desk.user)
    return await desk.lifecycle.accept(inbound, only_into=desk.only_into)


async def queue(desk: Desk, text: str) -> Said:
    if text:
        row, _ = await _accept(desk, text)
        before = [other for other in await desk.store.read(lambda uow: _waiting(uow, desk)) if other.id < row.id]
        place = (
            f"after {counted(len(before), 'message')} that wait{'s' if len(before) == 1 else ''}" if before else "next"
        )
        return Said(f"Queued, {place}: {excerpt(text)}", wakes=True)
    rows = await desk.store.read(lambda uow: _waiting(uow, desk))
    if not rows:
        return Said("Nothing waits; /queue TEXT adds a message that is answered in its turn.")
    lines = [f"{number:>3}  {excerpt(row.inbound.text, _LINE_CHARS_MAX)}" for number, row in enumerate(rows, 1)]
    more = [f"and {len(rows) - _LISTED_MAX} more"] if len(rows) > _LISTED_MAX else []
    return Said("\n".join([f"{counted(len(rows), 'message')} waiting, in this order:", *lines[:_LISTED_MAX], *more]))


async def steer(desk: Desk, text: str) -> Said:
    if not text:
        return refused("Usage: /steer TEXT")
    row, _ = await _accept(desk, text)
    if row.state is not InboxState.WAITING:
        return Said("This was taken up before.")
    session = await session_here(desk)
    if session is not None and desk.agent.steer(session.id, row.id):
        return Said("Passed on; it is taken up at the next step.", wakes=True)
    return Said("Nothing is running here, so this is your next message.", wakes=True)


def _waiting(uow: UnitOfWork, desk: Desk) -> list[InboxRow]:
    return [row for row in uow.inbox.waiting(desk.key) if row.inbound.owner == desk.owner]
