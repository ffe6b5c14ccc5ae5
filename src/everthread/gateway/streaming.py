"""Show an answer while it is written: one message, sent once and then edited at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from everthread.agent.events import Retrying, TextWritten, ToolBegan, TurnEvent
from everthread.concurrency import cancel_tasks, wait_until_done
from everthread.domain.errors import EverthreadError, PlatformError, PlatformUnavailable
from everthread.domain.model import ChatType
from everthread.gateway.delivery_check import Delivered, DeliveryCheck
from everthread.gateway.message_split import chars_that_fit
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.log_context import log_fields
from everthread.ports.clock import Clock
from everthread.ports.platform import Address, Outbound, Platform

log = logging.getLogger("everthread.gateway")

FIRST_S = 0.8
"""An answer that is complete by then is sent without a live reply."""
TYPING_FIRST_S = 0.2
"""An answer that is complete by then needs no typing indicator."""
TYPING_S = 4.0
CONTINUES = " …"
END_S_MAX = 30.0
"""Do not wait longer for a platform to accept an edit."""


class LiveReply:
    """The message that shows one turn while it runs. Its failures do not affect the turn."""

    def __init__(
        self,
        platform: Platform,
        lifecycle: Lifecycle,
        clock: Clock,
        delivery_check: DeliveryCheck,
        *,
        edits: bool,
        since: float,
    ) -> None:
        """`since` is the start of this process, by the loop's clock."""
        self._platform = platform
        self._delivery_check = delivery_check
        self._since = since
        self._lifecycle = lifecycle
        self._clock = clock
        self._edits = edits and platform.capabilities.edits
        self._claim: TurnClaim | None = None
        self._tasks: list[asyncio.Future[None]] = []
        self._is_writing = False
        self._text = ""
        self._shown = ""
        self._message_id: str | None = None
        self._is_checked = False

    def begin(self, claim: TurnClaim) -> None:
        self._claim = claim
        if self._platform.capabilities.typing:
            self._tasks.append(asyncio.ensure_future(self._show_typing(Address.of(claim.ref.key))))

    def handle(self, event: TurnEvent) -> None:
        match event:
            case TextWritten():
                self._text += event.text
                if self._edits and self._claim is not None and not self._is_writing:
                    self._is_writing = True
                    self._tasks.append(asyncio.ensure_future(self._show_text(self._claim)))
            case ToolBegan() if self._text:
                self._text += "\n\n"
            case Retrying():
                self._text = ""
            case _:
                pass

    async def end(self, *, withheld: bool) -> None:
        """Stop showing the turn. A beginning that will never be finished is marked as stopped."""
        await cancel_tasks(self._tasks, END_S_MAX)
        # The tasks and this object reference each other: without this, only the cycle collector would free them.
        self._tasks.clear()
        if withheld and self._message_id is not None and self._claim is not None:
            with suppress(PlatformError):
                to = Address.of(self._claim.ref.key)
                await self._platform.edit(to, self._message_id, f"{self._shown.removesuffix(CONTINUES)}\n(stopped)")

    async def _show_typing(self, to: Address) -> None:
        await self._clock.sleep(TYPING_FIRST_S)
        while True:
            with suppress(PlatformError):
                await self._platform.show_typing(to)
            await self._clock.sleep(TYPING_S)

    async def _show_text(self, claim: TurnClaim) -> None:
        to, every_s = Address.of(claim.ref.key), self._interval_s(claim.ref.key.chat_type)
        pause_s = FIRST_S
        try:
            while True:
                await self._clock.sleep(pause_s)
                text = self._beginning()
                if text == self._shown or not text.strip():
                    continue
                # Not to be cancelled midway: the id of a sent message must be stored.
                showing = asyncio.ensure_future(self._show_once(claim, to, text))
                stopped = await wait_until_done(showing)
                try:
                    showing.result()
                    pause_s = every_s
                except PlatformUnavailable as error:
                    pause_s = max(error.retry_after, 2 * pause_s)
                if stopped is not None:
                    raise stopped
        except EverthreadError as error:
            fields = log_fields(claim.ref.key, claim.ref.session_id, claim.turn_id)
            log.info("the live reply stopped: %s", error, extra=fields)

    async def _show_once(self, claim: TurnClaim, to: Address, text: str) -> None:
        if self._message_id is None:
            self._message_id = await self._find_beginning(claim, to, text)
        if self._message_id is None:
            self._message_id = await self._platform.send(Outbound(f"{claim.turn_id}.0", to, text))
            await self._lifecycle.draft_reply(claim, text, self._message_id)
        else:
            await self._lifecycle.check_acting(claim)
            await self._platform.edit(to, self._message_id, text)
        self._shown = text

    async def _find_beginning(self, claim: TurnClaim, to: Address, text: str) -> str | None:
        """Find the beginning that a dead process may have sent.

        The draft is stored before anything is sent: the process that finishes the answer must know that a beginning
        may be delivered.
        """
        finder = self._platform.finder
        if finder is None:
            return (await self._lifecycle.draft_reply(claim, text, "")).platform_message_id or None
        begun = await self._lifecycle.stored_reply(claim.turn_id)
        draft = await self._lifecycle.draft_reply(claim, text, "", finder.newest(to))
        # After one check, a failed attempt is known not to be delivered.
        if self._is_checked or begun is None or begun.platform_message_id != "":
            self._is_checked = True
            return draft.platform_message_id or None
        message = Outbound(f"{claim.turn_id}.0", to, text)
        status = await self._delivery_check.find(self._platform, message, draft, self._since)
        self._is_checked = True
        if not isinstance(status, Delivered):
            return None
        await self._lifecycle.draft_reply(claim, text, status.message_id)
        fields = log_fields(claim.ref.key, claim.ref.session_id, claim.turn_id)
        log.info("found the beginning of an answer; continuing it", extra=fields)
        return status.message_id

    def _interval_s(self, chat_type: ChatType) -> float:
        able = self._platform.capabilities
        in_groups = None if chat_type is ChatType.DM else able.edit_every_s_in_groups
        return able.edit_every_s if in_groups is None else in_groups

    def _beginning(self) -> str:
        fitting = chars_that_fit(self._platform.capabilities, self._text, len(CONTINUES))
        return self._text[:fitting].rstrip() + CONTINUES if self._text.strip() else ""
