"""Showing an answer while it is written: one message, sent once and then edited, not more often than is welcome."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from everthread.agent.events import Retrying, TextWritten, ToolBegan, TurnEvent
from everthread.concurrency import until_done
from everthread.domain.errors import EverthreadError, PlatformError, PlatformUnavailable
from everthread.domain.model import ChatType
from everthread.gateway.delivery_check import Finding, There
from everthread.gateway.message_split import room_of
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Outbound, Platform

log = logging.getLogger("everthread.gateway")

FIRST_S = 0.8
"""An answer that is whole by then is sent as it is."""
TYPING_FIRST_S = 0.2
"""Of an answer that is there by then, nobody need be told that it is being written."""
TYPING_S = 4.0
GOING_ON = " …"
END_S_MAX = 30.0
"""A platform that has not taken what is shown by then keeps nobody waiting any longer."""


class LiveReply:
    """What somebody sees of one turn while it runs. Nothing that goes wrong here concerns the turn."""

    def __init__(
        self, platform: Platform, lifecycle: Lifecycle, clock: Clock, finding: Finding, *, edits: bool, since: float
    ) -> None:
        """`since` is when this process began, by the loop's clock."""
        self._platform = platform
        self._finding = finding
        self._since = since
        self._lifecycle = lifecycle
        self._clock = clock
        self._edits = edits and platform.capabilities.edits
        self._ticket: TurnClaim | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._is_writing = False
        self._text = ""
        self._shown = ""
        self._message_id: str | None = None
        self._is_looked_for = False

    def begin(self, ticket: TurnClaim) -> None:
        self._ticket = ticket
        if self._platform.capabilities.typing:
            self._tasks.append(asyncio.ensure_future(self._show_typing(Address.of(ticket.ref.key))))

    def hear(self, event: TurnEvent) -> None:
        match event:
            case TextWritten():
                self._text += event.text
                if self._edits and self._ticket is not None and not self._is_writing:
                    self._is_writing = True
                    self._tasks.append(asyncio.ensure_future(self._show_text(self._ticket)))
            case ToolBegan() if self._text:
                self._text += "\n\n"
            case Retrying():
                self._text = ""
            case _:
                pass

    async def end(self, *, withheld: bool) -> None:
        """Nothing more is shown of it. A beginning that will never be finished is marked as such."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S_MAX)
            # They refer to this, and where they were stopped: left so, only a search for rings would find all of it.
            self._tasks.clear()
        if withheld and self._message_id is not None and self._ticket is not None:
            with suppress(PlatformError):
                to = Address.of(self._ticket.ref.key)
                await self._platform.edit(to, self._message_id, f"{self._shown.removesuffix(GOING_ON)}\n(stopped)")

    async def _show_typing(self, to: Address) -> None:
        await self._clock.sleep(TYPING_FIRST_S)
        while True:
            with suppress(PlatformError):
                await self._platform.show_typing(to)
            await self._clock.sleep(TYPING_S)

    async def _show_text(self, ticket: TurnClaim) -> None:
        to, every_s = Address.of(ticket.ref.key), self._every_s(ticket.ref.key.chat_type)
        pause_s = FIRST_S
        try:
            while True:
                await self._clock.sleep(pause_s)
                text = self._beginning()
                if text == self._shown or not text.strip():
                    continue
                # Not to be torn apart: what was sent must be known to be.
                showing = asyncio.ensure_future(self._once(ticket, to, text))
                stopped = await until_done(showing)
                try:
                    showing.result()
                    pause_s = every_s
                except PlatformUnavailable as error:
                    pause_s = max(error.retry_after, 2 * pause_s)
                if stopped is not None:
                    raise stopped
        except EverthreadError as error:
            where = log_fields(ticket.ref.key, ticket.ref.session_id, ticket.turn_id)
            log.info("an answer is not shown while it is written: %s", error, extra=where)

    async def _once(self, ticket: TurnClaim, to: Address, text: str) -> None:
        if self._message_id is None:
            self._message_id = await self._begun_before(ticket, to, text)
        if self._message_id is None:
            self._message_id = await self._platform.send(Outbound(f"{ticket.turn_id}.0", to, text))
            await self._lifecycle.draft_reply(ticket, text, self._message_id)
        else:
            await self._platform.edit(to, self._message_id, text)
        self._shown = text

    async def _begun_before(self, ticket: TurnClaim, to: Address, text: str) -> str | None:
        """The beginning that a process which is gone has shown, if one is out. Noted before anything is sent, whatever
        becomes of that: whoever finishes the answer knows that a beginning may be out.
        """
        finder = self._platform.finder
        if finder is None:
            return (await self._lifecycle.draft_reply(ticket, text, "")).platform_message_id or None
        begun = await self._lifecycle.drafted(ticket.turn_id)
        draft = await self._lifecycle.draft_reply(ticket, text, "", finder.newest(to))
        # Once that is known, and it is tried again, it has certainly not gone out: nobody has to be asked.
        if self._is_looked_for or begun is None or begun.platform_message_id != "":
            self._is_looked_for = True
            return draft.platform_message_id or None
        seen = await self._finding.look(self._platform, Outbound(f"{ticket.turn_id}.0", to, text), draft, self._since)
        self._is_looked_for = True
        if not isinstance(seen, There):
            return None
        await self._lifecycle.draft_reply(ticket, text, seen.message_id)
        where = log_fields(ticket.ref.key, ticket.ref.session_id, ticket.turn_id)
        log.info("the beginning of an answer was found, and is gone on with", extra=where)
        return seen.message_id

    def _every_s(self, chat_type: ChatType) -> float:
        able = self._platform.capabilities
        in_groups = None if chat_type is ChatType.DM else able.edit_every_s_in_groups
        return able.edit_every_s if in_groups is None else in_groups

    def _beginning(self) -> str:
        room = room_of(self._platform.capabilities, self._text, len(GOING_ON))
        return self._text[:room].rstrip() + GOING_ON if self._text.strip() else ""
