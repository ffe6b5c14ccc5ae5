"""Find out whether an uncertain message was delivered. A bot can't read messages, but learns why it can't edit one.

The probe edits the caption of a message id. Telegram rejects it with one error if there is no such message in the chat,
with another if it is somebody else's, and with a third if it is our own text message, which has no caption. For a file,
the caption is the one it has. So the probe never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

import telegram
from telegram.error import BadRequest, ChatMigrated

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.message_ids import EMPTY_MAX, IdSearch
from everthread.adapters.platforms.telegram.sender import ChatSender, with_markdown
from everthread.domain.errors import PlatformRefused, SendUncertain
from everthread.ports.platform import Address, Outbound

NOT_MODIFIED = "message is not modified"
NOT_FOUND = ("message to edit not found", "message_id_invalid")
NOT_OURS = "message can't be edited"
NO_CAPTION = "there is no caption in the message to edit"


class MessageOwner(Enum):
    NOBODY = auto()
    """No such message in the chat."""
    OTHER = auto()
    TEXT = auto()
    """Our own text message."""
    FILE = auto()


class TelegramFinder:
    def __init__(
        self, bot: telegram.Bot, chats: ChatSender, errors: ErrorTranslator, is_captioned: Callable[[Outbound], bool]
    ) -> None:
        """`is_captioned` tells whether a message is sent as a file with a caption."""
        self._bot = bot
        self._chats = chats
        self._errors = errors
        self._is_captioned = is_captioned

    def know(self, to: Address, message_id: str) -> None:
        if message_id.isdecimal():
            self._chats.message_ids.add(self._chats.current_id(to), int(message_id))

    def newest(self, to: Address) -> str:
        try:
            return self._chats.message_ids.position(self._chats.current_id(to))
        except PlatformRefused:
            return ""

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        chat, message_ids = self._chats.current_id(message.to), self._chats.message_ids
        wanted = MessageOwner.FILE if self._is_captioned(message) else MessageOwner.TEXT
        search = IdSearch(message_ids.newest(chat))
        for candidate in message_ids.unknown(chat, after, int(until) if until else None):
            if search.is_over(candidate):
                await self._check_backlog()
                return None
            owner = await self._probe(chat, message, candidate)
            if owner is wanted and str(candidate) not in besides and await self._is_unknown(chat, candidate):
                return str(candidate)
            search.record(candidate, exists=owner is not MessageOwner.NOBODY)
        return None

    async def delete(self, to: Address, message_id: str) -> None:
        with self._errors.translate():
            await self._chats.call(to, lambda chat: self._bot.delete_message(chat, int(message_id)))

    async def _check_backlog(self) -> None:
        """Raise `SendUncertain` if many updates are pending: their message ids are unknown yet."""
        with self._errors.translate():
            waiting = (await self._bot.get_webhook_info()).pending_update_count
        if waiting >= EMPTY_MAX:
            raise SendUncertain(f"{waiting} pending updates are not received yet")

    async def _is_unknown(self, chat: int, candidate: int) -> bool:
        """Wait for sends in progress, then tell whether the id is still unknown."""
        await self._chats.wait_sends(chat)
        return not self._chats.message_ids.is_known(chat, candidate)

    async def _probe(self, chat: int, message: Outbound, candidate: int) -> MessageOwner:
        """Probe an id in this chat only: after a move, the id belongs to another message."""

        async def change(text: str, parse_mode: str | None) -> None:
            await self._bot.edit_message_caption(chat, candidate, caption=text or None, parse_mode=parse_mode)

        with self._errors.translate():
            try:
                await with_markdown(message.text if self._is_captioned(message) else "", change)
            except BadRequest as error:
                return self._interpret(str(error))
            except ChatMigrated as error:
                self._chats.move(chat, error.new_chat_id)
                raise SendUncertain("the chat's message ids have changed since") from None
        return MessageOwner.FILE

    def _interpret(self, description: str) -> MessageOwner:
        text = description.lower()
        if any(one in text for one in NOT_FOUND):
            return MessageOwner.NOBODY
        if NOT_OURS in text:
            return MessageOwner.OTHER
        if NO_CAPTION in text:
            return MessageOwner.TEXT
        if NOT_MODIFIED in text:
            return MessageOwner.FILE
        raise SendUncertain(f"unexpected answer to an edit: {text}")
