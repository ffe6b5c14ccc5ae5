"""Run one slash command from the inbox, store its reply and notify its subscribers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from everthread.commands.context import CommandContext, CommandResult, CommandRuntime
from everthread.commands.registry import ParsedCommand, parse, run_command
from everthread.domain.errors import AlreadyDone, StoreError
from everthread.domain.model import ChatType, InboxRow, InboxState, Reply
from everthread.gateway.access import FOR_PRIVATE_CHATS
from everthread.gateway.outbox import Outbox
from everthread.gateway.routing import is_shared
from everthread.gateway.turn_events import CommandAnswered, MessageSetAside, Subscriber
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Button, File

if TYPE_CHECKING:
    from everthread.gateway.scheduler import Scheduler

log = logging.getLogger("everthread.gateway")

BEGUN_BEFORE = "This command had begun before a restart. /status shows the current state."
WENT_WRONG = "The command failed because of an internal error. The log has the details."
NO_LEAVING = "You can't leave here. The conversation is kept; write again at any time."


class GatewayRuntime(CommandRuntime, Protocol):
    """The part of the runtime that the gateway uses."""

    clock: Clock
    new_id: Callable[[], str]
    lanes_problem: str
    """The error that stopped the delivery lanes, until they are restarted; empty if they run."""
    lane_restarts: int

    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler: ...


BuildContext = Callable[[InboxRow, str], CommandContext]
"""Builds the context of a command in the inbox, for the model that its key has chosen."""


class CommandRunner(Struct, frozen=True):
    runtime: GatewayRuntime
    outbox: Outbox
    subscribers: Mapping[int, Subscriber]
    build_context: BuildContext

    async def run(self, row: InboxRow) -> bool:
        """Run the command unless it is done; return true if a new message waits because of it."""
        # One read instead of two: when many people send a command at once, the last one waits for all the reads.
        now, model, forget_count = await self.runtime.store.read_inline(
            lambda uow: (
                uow.inbox.get(row.id),
                uow.sessions.chosen_model(row.inbound.key),
                uow.erasure.forget_count(row.inbound.owner),
            )
        )
        if now is None or now.state is InboxState.DONE:
            return False
        result = await self._result(now, model)
        text = (result.text or None) if self.outbox.serves(now.inbound.key.platform) else None
        reply = await self.runtime.lifecycle.answer_command(now, text, forget_count)
        if result.model is not None:
            await self.runtime.lifecycle.choose_model(now.inbound.key, result.model, owner=now.inbound.owner)
        if reply is not None:
            document = result.document
            files = (File(document.file_name, document.text.encode()),) if document is not None else ()
            self.outbox.put(reply, tuple(Button(offer.label, offer.command) for offer in result.menu), files)
        if (subscriber := self.subscribers.get(now.id)) is not None:
            subscriber(CommandAnswered(result))
        await self._notify_set_aside()
        if result.wrote_outbox:
            await self.outbox.sweep()
        return result.wakes_worker

    async def _result(self, row: InboxRow, model: str) -> CommandResult:
        if row.state is InboxState.RUNNING:
            return CommandResult(BEGUN_BEFORE)
        found = parse(row.inbound.text)
        if not isinstance(found, ParsedCommand):
            return CommandResult(found.answer if found is not None else "", ok=False)
        if found.command.private and row.inbound.key.chat_type is not ChatType.DM and not is_shared(row.inbound.key):
            return CommandResult(FOR_PRIVATE_CHATS, ok=False)
        try:
            result = await run_command(self.build_context(row, model), found)
        except AlreadyDone:
            return CommandResult(BEGUN_BEFORE)
        except StoreError:
            raise
        except Exception:
            log.exception("/%s failed", found.command.name, extra=log_fields(row.inbound.key, owner=row.inbound.owner))
            return CommandResult(WENT_WRONG, ok=False)
        return CommandResult(NO_LEAVING) if result.quits else result

    async def _notify_set_aside(self) -> None:
        """Tell the subscribers whose message was set aside by the command."""
        if not self.subscribers:
            return
        inbox_ids = tuple(self.subscribers)
        # In a reader thread: there may be many subscribers, and each costs a row.
        rows = await self.runtime.store.read(lambda uow: [uow.inbox.get(inbox_id) for inbox_id in inbox_ids])
        for row in rows:
            if row is None or row.state is not InboxState.SET_ASIDE:
                continue
            if (subscriber := self.subscribers.get(row.id)) is not None:
                subscriber(MessageSetAside(row.session_id or ""))


def skips_queue(row: InboxRow) -> bool:
    """Return true if a command runs at once, even while an answer is being written."""
    found = parse(row.inbound.text)
    return not isinstance(found, ParsedCommand) or found.command.skips_queue
