"""Offer strangers a pairing code, with which an admin can admit them.

The code is sent directly and not through the outbox: only its hash is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from everthread.concurrency import cancel_tasks
from everthread.domain.errors import EverthreadError, SendUncertain
from everthread.domain.model import SessionKey, replace_surrogates
from everthread.domain.pairing import PairingRequest, format_account, new_code
from everthread.domain.text_format import one_line
from everthread.gateway.routing import NAME_CHARS_MAX
from everthread.lifecycle.pairing import SENDING_S, Pairings, code_reply_id
from everthread.ports.platform import Address, Outbound, Platform, Update

log = logging.getLogger("everthread.gateway")

OFFER = "I don't know you yet. My operator can give you access with this code, within an hour: {code}"


class PairingOffers:
    """Sends pairing codes: to each stranger one an hour and three a day, and thirty an hour on each platform."""

    def __init__(self, pairings: Pairings, platforms: Mapping[str, Platform], choice: Callable[[str], str]) -> None:
        """`choice` picks a character with a cryptographic generator."""
        self._pairings = pairings
        self._platforms = platforms
        self._choice = choice
        self._tasks: dict[str, asyncio.Future[None]] = {}

    async def offer(self, update: Update, key: SessionKey) -> None:
        """Send a code in the background, unless the sender has one or had too many."""
        account, platform = format_account(update.platform, update.user), self._platforms.get(update.platform)
        if platform is None or account in self._tasks:
            return
        if await self._pairings.may_offer(update.platform, update.user) and account not in self._tasks:
            self._tasks[account] = task = asyncio.ensure_future(self._create_and_send(platform, update, key))
            task.add_done_callback(lambda _: self._tasks.pop(account, None))

    async def finish(self) -> None:
        """Stop sending. A code in transit is valid for a moment only."""
        await cancel_tasks(self._tasks.values())

    async def _create_and_send(self, platform: Platform, update: Update, key: SessionKey) -> None:
        try:
            name = one_line(replace_surrogates(update.user_name))[:NAME_CHARS_MAX]
            code = new_code(self._choice)
            pairing = await self._pairings.offer(update.platform, update.user, name, code)
            if pairing is not None:
                await self._send(platform, pairing, key, OFFER.format(code=code))
        except Exception as error:  # noqa: BLE001 - its text may contain the code
            log.warning("%s: could not send a pairing code: %s", platform.name, type(error).__name__)

    async def _send(self, platform: Platform, pairing: PairingRequest, key: SessionKey, text: str) -> None:
        message_id: str | None = None
        out = Outbound(code_reply_id(pairing.platform, pairing.user, pairing.at), Address.of(key), text)
        try:
            async with asyncio.timeout(SENDING_S / 2):
                message_id = await platform.send(out)
        except (SendUncertain, TimeoutError):
            # It may have been delivered, so it must be valid.
            pass
        except EverthreadError:
            await self._pairings.withdraw(pairing)
            raise
        await self._pairings.mark_sent(pairing, key, message_id)
        log.info("%s: sent a pairing code", platform.name)
