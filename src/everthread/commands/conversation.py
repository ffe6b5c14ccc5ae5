"""The commands about the conversation one is in, and the answer that is being written in it.

The commands that have something asked: once more, in its turn, or of the answer that is being written.

`/compress`: a summary in place of what was said first.
"""

from __future__ import annotations

import logging

from everthread.commands.context import NONE_YET, CommandContext, CommandResult, listed, name_of, refused, session_here
from everthread.domain import titles
from everthread.domain.errors import ModelError, NotCompressed
from everthread.domain.model import Inbound, InboxRow, InboxState, Slot
from everthread.domain.text_format import counted, excerpt
from everthread.store.unit_of_work import UnitOfWork


async def title(desk: CommandContext, wanted: str) -> CommandResult:
    session = await session_here(desk)
    if session is None:
        return refused(NONE_YET)
    if not wanted:
        return CommandResult(f'This is "{session.title}".' if session.title else "This conversation has no title yet.")
    if titles.clean(wanted) == session.title:
        return refused(f'This is "{session.title}" already.')
    given = await desk.lifecycle.rename(session.id, titles.clean(wanted), owner=desk.owner)
    return CommandResult(f'This is "{given}" now.')


async def stop(desk: CommandContext, _: str) -> CommandResult:
    session = await session_here(desk)
    if session is not None and desk.agent.stop(session.id):
        return CommandResult("Stopped; what there is of the answer is kept. /undo takes it back.")
    if desk.stop_next is not None and await desk.stop_next():
        return CommandResult("Stopped before it was begun; the message is kept. /retry asks it again.")
    if session is not None and await desk.store.read(lambda uow: uow.slots.live(session.id)):
        return refused("The answer is being written by another process; stop it there.")
    return refused("Nothing is running here.")


async def status(desk: CommandContext, _: str) -> CommandResult:
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
    return CommandResult("\n".join(lines))


async def leave(desk: CommandContext, _: str) -> CommandResult:
    return CommandResult("", quits=True)


_LISTED_MAX = 20
_LINE_CHARS_MAX = 100


async def retry(desk: CommandContext, _: str) -> CommandResult:
    again = await desk.lifecycle.ask_again(desk.key, owner=desk.owner, order=desk.order, user=desk.user)
    if again.row is None:
        return refused("There is nothing to ask again; say something first.")
    if again.crossing.cancelled and again.crossing.left:
        desk.agent.stop(again.crossing.left, "stopped by /retry")
    row, which = again.row, "was being written" if again.crossing.cancelled else "there was"
    before = [other for other in await desk.store.read(lambda uow: _waiting(uow, desk)) if other.id < row.id]
    after = f" It comes after what waits: {listed(before)}." if before else ""
    text = f"Asking again: {excerpt(row.inbound.text)}. The answer that {which} is hidden, and not remembered.{after}"
    return CommandResult(text, wakes=True)


async def _accept(desk: CommandContext, text: str) -> tuple[InboxRow, bool]:
    inbound = Inbound(desk.key, desk.owner, text, desk.account, desk.update_id, user=desk.user)
    return await desk.lifecycle.accept(inbound, only_into=desk.only_into)


async def queue(desk: CommandContext, text: str) -> CommandResult:
    if text:
        row, _ = await _accept(desk, text)
        before = [other for other in await desk.store.read(lambda uow: _waiting(uow, desk)) if other.id < row.id]
        place = (
            f"after {counted(len(before), 'message')} that wait{'s' if len(before) == 1 else ''}" if before else "next"
        )
        return CommandResult(f"Queued, {place}: {excerpt(text)}", wakes=True)
    rows = await desk.store.read(lambda uow: _waiting(uow, desk))
    if not rows:
        return CommandResult("Nothing waits; /queue TEXT adds a message that is answered in its turn.")
    lines = [f"{number:>3}  {excerpt(row.inbound.text, _LINE_CHARS_MAX)}" for number, row in enumerate(rows, 1)]
    more = [f"and {len(rows) - _LISTED_MAX} more"] if len(rows) > _LISTED_MAX else []
    return CommandResult(
        "\n".join([f"{counted(len(rows), 'message')} waiting, in this order:", *lines[:_LISTED_MAX], *more])
    )


async def steer(desk: CommandContext, text: str) -> CommandResult:
    if not text:
        return refused("Usage: /steer TEXT")
    row, _ = await _accept(desk, text)
    if row.state is not InboxState.WAITING:
        return CommandResult("This was taken up before.")
    session = await session_here(desk)
    if session is not None and desk.agent.steer(session.id, row.id):
        return CommandResult("Passed on; it is taken up at the next step.", wakes=True)
    return CommandResult("Nothing is running here, so this is your next message.", wakes=True)


def _waiting(uow: UnitOfWork, desk: CommandContext) -> list[InboxRow]:
    return [row for row in uow.inbox.waiting(desk.key) if row.inbound.owner == desk.owner]


log = logging.getLogger("everthread.commands.registry")

FOCUS_CHARS_MAX = 2_000


async def compress(desk: CommandContext, focus: str) -> CommandResult:
    if len(focus) > FOCUS_CHARS_MAX:
        return refused(f"Say in at most {FOCUS_CHARS_MAX:,} characters what is to be kept above all.")
    if await session_here(desk) is None:
        return refused(NONE_YET)
    choice = desk.choices(desk.model)[0]
    try:
        done = await desk.agent.compress(desk.key, choice, owner=desk.owner, focus=focus)
    except NotCompressed as error:
        if desk.guest and isinstance(error.__cause__, ModelError):
            log.warning("/compress: %s", error)
            return refused(f"Nothing was compressed. {error.__cause__.plain}")
        return refused(f"Nothing was compressed: {error}.")
    return CommandResult(
        f"{done.text}. All of it is still stored: /search finds it, /uncompress goes on with all of it."
    )
