"""Showing a stranger a code, with which somebody who is in can let them in.

The code goes straight to the platform and not by way of the outbox: only what it is made into is written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from everthread.domain.errors import EverthreadError, SendUncertain
from everthread.domain.model import SessionKey, whole
from everthread.domain.pairing import Pairing, account_of, new_code
from everthread.domain.text_format import one_line
from everthread.gateway.routing import NAME_CHARS_MAX
from everthread.lifecycle.pairing import SENDING_S, Pairings, sent_name
from everthread.ports.platform import Address, Outbound, Platform, Update

log = logging.getLogger("everthread.gateway")

SHOWN = "I don't know you yet. Whoever runs me can let you in with this code, within an hour: {code}"


class Door:
    """Where strangers wait. Each is answered once an hour at most, and a few of a platform at a time."""

    def __init__(self, pairings: Pairings, platforms: Mapping[str, Platform], choice: Callable[[str], str]) -> None:
        """`choice` takes one character of several, so that nobody can guess which."""
        self._pairings = pairings
        self._platforms = platforms
        self._choice = choice
        self._showing: dict[str, asyncio.Future[None]] = {}

    async def answer(self, update: Update, key: SessionKey) -> None:
        """Have them shown a code, unless they have one or too many others do. Comes back without having sent it."""
        account, platform = account_of(update.platform, update.user), self._platforms.get(update.platform)
        if platform is None or account in self._showing:
            return
        if await self._pairings.is_worth_asking(update.platform, update.user) and account not in self._showing:
            self._showing[account] = showing = asyncio.ensure_future(self._show(platform, update, key))
            showing.add_done_callback(lambda _: self._showing.pop(account, None))

    async def finish(self) -> None:
        """Show nothing more. A code that was on its way holds for a moment only."""
        showing = list(self._showing.values())
        for task in showing:
            task.cancel()
        if showing:
            await asyncio.wait(showing)

    async def _show(self, platform: Platform, update: Update, key: SessionKey) -> None:
        try:
            name = one_line(whole(update.user_name))[:NAME_CHARS_MAX]
            code = new_code(self._choice)
            pairing = await self._pairings.offer(update.platform, update.user, name, code)
            if pairing is not None:
                await self._send(platform, pairing, key, SHOWN.format(code=code))
        except Exception as error:  # noqa: BLE001 - what is said of it may repeat what was to be sent
            log.warning("%s: a stranger was shown no code: %s", platform.name, type(error).__name__)

    async def _send(self, platform: Platform, pairing: Pairing, key: SessionKey, text: str) -> None:
        message_id: str | None = None
        out = Outbound(sent_name(pairing.platform, pairing.user, pairing.at), Address.of(key), text)
        try:
            async with asyncio.timeout(SENDING_S / 2):
                message_id = await platform.send(out)
        except (SendUncertain, TimeoutError):
            # If they see it, it must hold.
            pass
        except EverthreadError:
            await self._pairings.withdraw(pairing)
            raise
        await self._pairings.sent(pairing, key, message_id)
        log.info("%s: a stranger was shown a code", platform.name)
