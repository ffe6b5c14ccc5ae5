"""Whether a message is there, asked of Telegram. A bot can't read what was said, but it is told why it can't edit it.

The question is to change the caption of a message. It is refused for one reason where there is no such message in that
chat, for another where it is somebody else's, and for a third where it is one's own and a text, which has no caption.
Of a file it is asked with the caption that the file has. So nothing is changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

import telegram
from telegram.error import BadRequest, ChatMigrated

from everthread.adapters.platforms.telegram.chats import Chats, formatted
from everthread.adapters.platforms.telegram.errors import Failures
from everthread.adapters.platforms.telegram.message_ids import EMPTY_MAX, Search
from everthread.domain.errors import PlatformRefused, SendUncertain
from everthread.ports.platform import Address, Outbound

NOT_CHANGED = "message is not modified"
NOT_THERE = ("message to edit not found", "message_id_invalid")
NOT_OURS = "message can't be edited"
NO_CAPTION = "there is no caption in the message to edit"


class Answer(Enum):
    NOBODYS = auto()
    """There is no such message in that chat."""
    ANOTHERS = auto()
    TEXT = auto()
    """One's own, as the next one."""
    FILE = auto()


class TelegramFinder:
    def __init__(
        self, bot: telegram.Bot, chats: Chats, failures: Failures, is_captioned: Callable[[Outbound], bool]
    ) -> None:
        """`is_captioned`: whether something goes out as a file that its text stands under, rather than as a text."""
        self._bot = bot
        self._chats = chats
        self._failures = failures
        self._is_captioned = is_captioned

    def know(self, to: Address, message_id: str) -> None:
        if message_id.isdecimal():
            self._chats.numbers.saw(self._chats.now(to), int(message_id))

    def newest(self, to: Address) -> str:
        try:
            return self._chats.numbers.mark(self._chats.now(to))
        except PlatformRefused:
            return ""

    async def find(self, message: Outbound, after: str, until: str = "", besides: Collection[str] = ()) -> str | None:
        chat, numbers = self._chats.now(message.to), self._chats.numbers
        wanted = Answer.FILE if self._is_captioned(message) else Answer.TEXT
        search = Search(numbers.newest(chat))
        for number in numbers.unknown(chat, after, int(until) if until else None):
            if search.is_over(number):
                await self._be_up_to_date()
                return None
            answer = await self._ask(chat, message, number)
            if answer is wanted and str(number) not in besides and await self._is_unheard_of(chat, number):
                return str(number)
            search.heard(number, is_anybodys=answer is not Answer.NOBODYS)
        return None

    async def take_back(self, to: Address, message_id: str) -> None:
        with self._failures.told():
            await self._chats.act(to, lambda chat: self._bot.delete_message(chat, int(message_id)))

    async def _be_up_to_date(self) -> None:
        """If much waits to come in, numbers were given behind the newest that is known. Raises `SendUncertain`."""
        with self._failures.told():
            waiting = (await self._bot.get_webhook_info()).pending_update_count
        if waiting >= EMPTY_MAX:
            raise SendUncertain(f"{waiting} messages that came in are not known yet")

    async def _is_unheard_of(self, chat: int, number: int) -> bool:
        """It may be one that is just being sent: then its number is known in a moment."""
        await self._chats.heard_of(chat)
        return not self._chats.numbers.is_seen(chat, number)

    async def _ask(self, chat: int, message: Outbound, number: int) -> Answer:
        """There and nowhere else: where a chat has moved to, the number is that of another message."""

        async def change(text: str, parse_mode: str | None) -> None:
            await self._bot.edit_message_caption(chat, number, caption=text or None, parse_mode=parse_mode)

        with self._failures.told():
            try:
                await formatted(message.text if self._is_captioned(message) else "", change)
            except BadRequest as error:
                return self._understood(str(error))
            except ChatMigrated as error:
                self._chats.move(chat, error.new_chat_id)
                raise SendUncertain("its messages are numbered in another way since") from None
        return Answer.FILE

    def _understood(self, refusal: str) -> Answer:
        words = refusal.lower()
        if any(one in words for one in NOT_THERE):
            return Answer.NOBODYS
        if NOT_OURS in words:
            return Answer.ANOTHERS
        if NO_CAPTION in words:
            return Answer.TEXT
        if NOT_CHANGED in words:
            return Answer.FILE
        raise SendUncertain(f"it does not say whether it is there: {words}")
