"""Carrying out one command that came in: what it says, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from everthread.agent.model_call import ModelChoice
from everthread.agent.turn import Agent
from everthread.commands.registry import CommandContext, CommandResult, ParsedCommand, carry_out, parse
from everthread.domain.errors import DoneBefore, StoreError
from everthread.domain.model import ChatType, InboxRow, InboxState
from everthread.gateway.approvals import Approvals
from everthread.gateway.outbox import Outbox
from everthread.gateway.routing import is_shared
from everthread.gateway.streaming import LiveReply
from everthread.gateway.turn_events import Answered, Hear, SetAside
from everthread.lifecycle import Lifecycle
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Button, File
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.gateway")

BEGUN_BEFORE = "This was begun before a restart; /status shows where you are now."
NOT_HERE = "Ask me that where we are alone: others would read here what is yours."
WENT_WRONG = "Something went wrong inside; it is in the log."
NO_LEAVING = "There is nothing to leave here: the conversation is kept, just come back."


class Bench(Protocol):
    """What the work is done with."""

    @property
    def lifecycle(self) -> Lifecycle: ...
    @property
    def store(self) -> Store: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def agent(self) -> Agent: ...

    @property
    def approvals(self) -> Approvals: ...

    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def is_guest(self, owner: str) -> bool:
        """Whether it is somebody else than the owner at this machine."""
        ...

    def desk(self, row: InboxRow, model: str) -> CommandContext: ...
    def showing(self, platform: str) -> LiveReply | None:
        """How an answer is shown there while it is written; `None` where nothing is sent."""
        ...


class Ordering:
    """Where commands are carried out."""

    def __init__(
        self, bench: Bench, delivery: Outbox, served: Callable[[str], bool], hearing: Mapping[int, Hear]
    ) -> None:
        self._bench = bench
        self._delivery = delivery
        self._served = served
        self._hearing = hearing

    async def carry_out(self, row: InboxRow) -> bool:
        """Carry it out, unless that was done; whether a message waits now that did not before."""
        # One look at the store rather than two: when many leave at once, the last one waits for what each costs.
        now, model = await self._bench.store.read_inline(
            lambda uow: (uow.inbox.get(row.id), uow.sessions.chosen_model(row.inbound.key))
        )
        if now is None or now.state is InboxState.DONE:
            return False
        said = await self._said(now, model)
        # What was said elsewhere already is said no second time.
        told = (said.text or None) if self._served(now.inbound.key.platform) else None
        reply = await self._bench.lifecycle.answer_order(now, told)
        if said.model is not None:
            await self._bench.lifecycle.choose_model(now.inbound.key, said.model, owner=now.inbound.owner)
        if reply is not None:
            document = said.document
            files = (File(document.file_name, document.text.encode()),) if document is not None else ()
            self._delivery.put(reply, tuple(Button(offer.label, offer.command) for offer in said.offers), files)
        if (hear := self._hearing.get(now.id)) is not None:
            hear(Answered(said))
        await self._tell_of_set_aside()
        if said.posts:
            await self._delivery.sweep()
        return said.wakes

    async def _said(self, row: InboxRow, model: str) -> CommandResult:
        if row.state is InboxState.RUNNING:
            return CommandResult(BEGUN_BEFORE)
        found = parse(row.inbound.text)
        if not isinstance(found, ParsedCommand):
            return CommandResult(found.answer if found is not None else "", ok=False)
        if found.command.private and row.inbound.key.chat_type is not ChatType.DM and not is_shared(row.inbound.key):
            return CommandResult(NOT_HERE, ok=False)
        try:
            said = await carry_out(self._bench.desk(row, model), found)
        except DoneBefore:
            return CommandResult(BEGUN_BEFORE)
        except StoreError:
            raise
        except Exception:
            log.exception("/%s failed", found.command.name, extra=log_fields(row.inbound.key))
            return CommandResult(WENT_WRONG, ok=False)
        return CommandResult(NO_LEAVING) if said.quits else said

    async def _tell_of_set_aside(self) -> None:
        """Whoever waits for an answer that will not come is told."""
        if not self._hearing:
            return
        heard = tuple(self._hearing)
        # Not on the loop: many may be waiting, for each of whom a row is read.
        rows = await self._bench.store.read(lambda uow: [uow.inbox.get(inbox_id) for inbox_id in heard])
        for row in rows:
            if (
                row is not None
                and row.state is InboxState.SET_ASIDE
                and (hear := self._hearing.get(row.id)) is not None
            ):
                hear(SetAside(row.session_id or ""))


def skips_queue(row: InboxRow) -> bool:
    """Whether a command acts at once, even while an answer is being written."""
    found = parse(row.inbound.text)
    return not isinstance(found, ParsedCommand) or found.command.skips_queue
