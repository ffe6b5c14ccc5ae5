"""Chats of one bot: their current ids, known message ids, and sends in progress."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import telegram
from telegram.constants import ParseMode
from telegram.error import BadRequest, ChatMigrated

from everthread.adapters.platforms.telegram.markdown import render
from everthread.adapters.platforms.telegram.message_ids import KnownMessageIds
from everthread.domain.errors import PlatformRefused
from everthread.ports.platform import Address

log = logging.getLogger("everthread.gateway")

PARSE_ERROR = "can't parse entities"

ResultT = TypeVar("ResultT")


class ChatSender:
    def __init__(self) -> None:
        self.message_ids = KnownMessageIds()
        self._moved: dict[int, int] = {}
        """Groups that became supergroups. Not stored: Telegram reports it when the old id is used."""
        self._sending: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)

    def move(self, chat: int, to: int) -> None:
        self._moved[chat] = to

    def current_id(self, to: Address) -> int:
        chat = _chat(to.chat)
        return self._moved.get(chat, chat)

    async def call(self, to: Address, call: Callable[[int], Awaitable[ResultT]]) -> ResultT:
        """Call with the chat's current id. A call that failed because the chat has moved is repeated."""
        chat = self.current_id(to)
        try:
            return await call(chat)
        except ChatMigrated as error:
            self.move(chat, error.new_chat_id)
            return await call(error.new_chat_id)

    async def send(self, to: Address, call: Callable[[int], Awaitable[telegram.Message]]) -> str:
        """Send a message and return its id."""
        chat, done = self.current_id(to), asyncio.get_running_loop().create_future()
        self._sending[chat].add(done)
        try:
            sent = await self.call(to, call)
            self.message_ids.add(self.current_id(to), sent.message_id)
            return str(sent.message_id)
        finally:
            done.set_result(None)
            self._sending[chat].discard(done)
            if not self._sending[chat]:
                del self._sending[chat]

    async def wait_sends(self, chat: int) -> None:
        """Wait for the sends to a chat that are in progress now."""
        if sending := self._sending.get(chat):
            await asyncio.wait(sending)


async def with_markdown(text: str, call: Callable[[str, str | None], Awaitable[ResultT]]) -> ResultT:
    """Call with the text as MarkdownV2, or as it is if Telegram can't parse that."""
    markdown = render(text)
    if markdown is not None:
        try:
            return await call(markdown, ParseMode.MARKDOWN_V2)
        except BadRequest as error:
            if PARSE_ERROR not in str(error).lower():
                raise
            log.warning("a text was sent without formatting: %s", error)
    return await call(text, None)


def _chat(chat: str) -> int:
    try:
        return int(chat)
    except ValueError:
        raise PlatformRefused("there is no such chat") from None
