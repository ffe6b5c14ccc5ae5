"""The chats of one bot: where they are now, which messages are known of them, and what is on its way there."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import telegram
from telegram.constants import ParseMode
from telegram.error import BadRequest, ChatMigrated

from everthread.adapters.platforms.telegram.markdown import rendered
from everthread.adapters.platforms.telegram.message_ids import Numbers
from everthread.domain.errors import PlatformRefused
from everthread.ports.platform import Address

log = logging.getLogger("everthread.gateway")

NOT_PARSED = "can't parse entities"

Done = TypeVar("Done")


class Chats:
    def __init__(self) -> None:
        self.numbers = Numbers()
        self._moved: dict[int, int] = {}
        """Groups that became supergroups. It need not be kept: whoever writes to the old one is told."""
        self._sending: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)

    def move(self, chat: int, to: int) -> None:
        self._moved[chat] = to

    def now(self, to: Address) -> int:
        chat = _chat(to.chat)
        return self._moved.get(chat, chat)

    async def act(self, to: Address, act: Callable[[int], Awaitable[Done]]) -> Done:
        """Where the chat is now. What was refused because it has moved has certainly not been done."""
        chat = self.now(to)
        try:
            return await act(chat)
        except ChatMigrated as error:
            self.move(chat, error.new_chat_id)
            return await act(error.new_chat_id)

    async def send(self, to: Address, act: Callable[[int], Awaitable[telegram.Message]]) -> str:
        """The number of what was sent."""
        chat, over = self.now(to), asyncio.get_running_loop().create_future()
        self._sending[chat].add(over)
        try:
            sent = await self.act(to, act)
            self.numbers.saw(self.now(to), sent.message_id)
            return str(sent.message_id)
        finally:
            over.set_result(None)
            self._sending[chat].discard(over)
            if not self._sending[chat]:
                del self._sending[chat]

    async def heard_of(self, chat: int) -> None:
        """Until what is on its way there now has come to something."""
        if sending := self._sending.get(chat):
            await asyncio.wait(sending)


async def formatted(text: str, act: Callable[[str, str | None], Awaitable[Done]]) -> Done:
    """With its format, or as it is written if Telegram makes nothing of that."""
    made = rendered(text)
    if made is not None:
        try:
            return await act(made, ParseMode.MARKDOWN_V2)
        except BadRequest as error:
            if NOT_PARSED not in str(error).lower():
                raise
            log.warning("a text went out without its format: %s", error)
    return await act(text, None)


def _chat(chat: str) -> int:
    try:
        return int(chat)
    except ValueError:
        raise PlatformRefused("there is no such chat") from None
