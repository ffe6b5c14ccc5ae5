"""Commands that act on the current session and its answers: `/title`, `/stop`, `/status`, `/retry`, `/queue`, `/steer`,
`/compress`, `/quit`."""

from __future__ import annotations

import logging

from everthread.commands.context import (
    NO_SESSION,
    CommandContext,
    CommandResult,
    current_session,
    fail,
    label_of,
    list_messages,
)
from everthread.domain import titles
from everthread.domain.errors import ModelError, NotCompressed
from everthread.domain.model import Inbound, InboxRow, InboxState, Slot
from everthread.domain.text_format import pluralize, quote_start
from everthread.store.unit_of_work import UnitOfWork

log = logging.getLogger("everthread.commands")

FOCUS_CHARS_MAX = 2_000
_LISTED_MAX = 20
_LINE_CHARS_MAX = 100


async def title(context: CommandContext, wanted: str) -> CommandResult:
    session = await current_session(context)
    if session is None:
        return fail(NO_SESSION)
    if not wanted:
        return CommandResult(
            f'The title is "{session.title}".' if session.title else "This session has no title. Set one: /title TITLE"
        )
    if titles.clean(wanted) == session.title:
        return fail(f'The title is already "{session.title}".')
    saved = await context.runtime.lifecycle.rename(session.id, titles.clean(wanted), owner=context.owner)
    return CommandResult(f'The title is now "{saved}".')


async def stop(context: CommandContext, _: str) -> CommandResult:
    session = await current_session(context)
    if session is not None and context.runtime.agent.stop(session.id):
        return CommandResult("Stopped. The partial answer is kept; /undo removes it.")
    if context.stop_next is not None and await context.stop_next():
        return CommandResult("Stopped before the answer began. The message is kept; /retry asks it again.")
    if session is not None and await context.runtime.store.read(lambda uow: uow.slots.live(session.id)):
        return fail("Another process is writing the answer. Stop it there.")
    return fail("Nothing is running here.")


async def status(context: CommandContext, _: str) -> CommandResult:
    session = await current_session(context)

    def read(uow: UnitOfWork) -> tuple[int, Slot | None, tuple[InboxRow, ...]]:
        turns = uow.turns.count(session) if session else 0
        return turns, uow.slots.live(session.id) if session else None, uow.inbox.waiting(context.key)

    turns, running, waiting = await context.runtime.store.read(read)
    session_id = f" ({session.id})" if session and session.title else ""
    lines = [f"Session: {label_of(session)}{session_id}, {pluralize(turns, 'turn')}" if session else NO_SESSION]
    lines.append("An answer is being written." if running else "Nothing is running.")
    if session is not None and (
        compression := await context.runtime.agent.compression_status(session.id, whole=not context.guest)
    ):
        lines.append(compression)
    if waiting:
        lines.append(f"{pluralize(len(waiting), 'message')} waiting: {list_messages(waiting)}")
    for provider in () if context.guest else await context.runtime.memory.journal.status():
        if provider.name in context.runtime.memory.names:
            lanes = provider.lanes
            lines.append(f"Memory {provider.name}: {lanes.waiting_entries} to deliver, {lanes.parked} parked")
    return CommandResult("\n".join(lines))


async def leave(context: CommandContext, _: str) -> CommandResult:
    return CommandResult("", quits=True)


async def retry(context: CommandContext, _: str) -> CommandResult:
    again = await context.runtime.lifecycle.retry_turn(
        context.key, owner=context.owner, command_id=context.order, user=context.user
    )
    if again.row is None:
        return fail("There is nothing to retry. Send a message first.")
    if again.crossing.cancelled and again.crossing.left:
        context.runtime.agent.stop(again.crossing.left, "stopped by /retry")
    row, which = again.row, "unfinished" if again.crossing.cancelled else "previous"
    before = await _waiting_before(context, row)
    after = f" It is queued after: {list_messages(before)}." if before else ""
    text = (
        f"Asking again: {quote_start(row.inbound.text)}. The {which} answer is hidden and removed from memory.{after}"
    )
    return CommandResult(text, wakes_worker=True)


async def queue(context: CommandContext, text: str) -> CommandResult:
    if text:
        row, _ = await _accept(context, text)
        before = await _waiting_before(context, row)
        place = f"after {pluralize(len(before), 'waiting message')}" if before else "next"
        return CommandResult(f"Queued, {place}: {quote_start(text)}", wakes_worker=True)
    rows = await context.runtime.store.read(lambda uow: _waiting(uow, context))
    if not rows:
        return CommandResult("The queue is empty. /queue TEXT adds a message.")
    lines = [f"{number:>3}  {quote_start(row.inbound.text, _LINE_CHARS_MAX)}" for number, row in enumerate(rows, 1)]
    more = [f"and {len(rows) - _LISTED_MAX} more"] if len(rows) > _LISTED_MAX else []
    return CommandResult(
        "\n".join([f"{pluralize(len(rows), 'message')} waiting, in this order:", *lines[:_LISTED_MAX], *more])
    )


async def steer(context: CommandContext, text: str) -> CommandResult:
    if not text:
        return fail("Usage: /steer TEXT")
    row, _ = await _accept(context, text)
    if row.state is not InboxState.WAITING:
        return CommandResult("This message was already received.")
    session = await current_session(context)
    if session is not None and context.runtime.agent.steer(session.id, row.id):
        return CommandResult("Sent. The agent reads it at its next step.", wakes_worker=True)
    return CommandResult("Nothing is running here, so this is your next message.", wakes_worker=True)


async def compress(context: CommandContext, focus: str) -> CommandResult:
    if len(focus) > FOCUS_CHARS_MAX:
        return fail(f"The focus is too long. Use at most {FOCUS_CHARS_MAX:,} characters.")
    if await current_session(context) is None:
        return fail(NO_SESSION)
    choice = context.runtime.choices((await context.rights()).granted_model(context.model))[0]
    try:
        done = await context.runtime.agent.compress(context.key, choice, owner=context.owner, focus=focus)
    except NotCompressed as error:
        if context.guest and isinstance(error.__cause__, ModelError):
            log.warning("/compress: %s", error)
            return fail(f"Nothing was compressed. {error.__cause__.plain}")
        return fail(f"Nothing was compressed: {error}.")
    return CommandResult(f"{done.text}. The full text is still stored: /search finds it, /uncompress restores it.")


async def _accept(context: CommandContext, text: str) -> tuple[InboxRow, bool]:
    inbound = Inbound(context.key, context.owner, text, context.account, context.update_id, user=context.user)
    return await context.runtime.lifecycle.accept(inbound, only_into=context.only_into)


async def _waiting_before(context: CommandContext, row: InboxRow) -> list[InboxRow]:
    rows = await context.runtime.store.read(lambda uow: _waiting(uow, context))
    return [other for other in rows if other.id < row.id]


def _waiting(uow: UnitOfWork, context: CommandContext) -> list[InboxRow]:
    return [row for row in uow.inbox.waiting(context.key) if row.inbound.owner == context.owner]
