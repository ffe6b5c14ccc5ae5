"""One bot on Telegram, as the gateway sees it."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePath
from urllib.parse import quote

import telegram
from telegram.constants import ChatAction
from telegram.error import BadRequest, TelegramError

from everthread.adapters.platforms.telegram.chats import NOT_PARSED, Chats, formatted
from everthread.adapters.platforms.telegram.delivery_check import NOT_CHANGED, TelegramFinder
from everthread.adapters.platforms.telegram.errors import Failures
from everthread.adapters.platforms.telegram.http import CALL_S, TooLarge, Transport
from everthread.adapters.platforms.telegram.markdown import CHARS_MAX, units
from everthread.adapters.platforms.telegram.polling import Taker, poll
from everthread.adapters.platforms.telegram.token_lock import TokenLock
from everthread.adapters.platforms.telegram.updates import Bot, Unread, taken
from everthread.config.settings import PlatformAccount
from everthread.domain.errors import PlatformError, PlatformRefused
from everthread.ports.platform import (
    BUTTON_COMMAND_BYTES_MAX,
    Address,
    Button,
    Capabilities,
    File,
    Incoming,
    Media,
    MovedChat,
    Outbound,
    Take,
    Unreadable,
)

log = logging.getLogger("everthread.gateway")

BASE_URL = "https://api.telegram.org"
CAPTION_CHARS_MAX = 1024
FILE_BYTES_MAX = 50_000_000
PHOTO_BYTES_MAX = 10_000_000
UPLOAD_S = 100.0
LABEL_CHARS_MAX = 64
ROW_CHARS_MAX = 20
"""So much can be read in one row of buttons on a phone."""
COMMANDS_MAX = 100
COMMAND_HELP_CHARS_MAX = 256

_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_VOICES = (".ogg", ".oga")

Way = Callable[..., Awaitable[telegram.Message]]

ABLE = Capabilities(
    CHARS_MAX,
    edits=True,
    # About a message a second in a chat and twenty a minute in a group, edits among them.
    edit_every_s=1.2,
    edit_every_s_in_groups=3.5,
    counts_utf16=True,
    typing=True,
    buttons=True,
    files=True,
    fetches=True,
    threads=True,
    markdown="telegram",
)


class TelegramPlatform:
    def __init__(
        self,
        name: str,
        account: PlatformAccount,
        token: str,
        lock: TokenLock,
        *,
        commands: Mapping[str, str],
        secret: str = "",
        call_s: float = CALL_S,
    ) -> None:
        """`commands` are those that are offered in the menu, with a line of help each. `secret` is what Telegram shows
        with what it brings, where there is a webhook.
        """
        self._name = name
        self._account = account
        self._lock = lock
        self._commands = commands
        self._secret = secret
        self._failures = Failures(token, call_s)
        self._chats = Chats()
        self._transport = Transport(call_s)
        # The library writes the token into its log.
        logging.getLogger("telegram").setLevel(logging.WARNING)
        base_url = account.base_url or BASE_URL
        self._files_url = f"{base_url}/file/bot{token}/"
        self._bot = telegram.Bot(
            token,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=self._transport,
            get_updates_request=self._transport,
        )
        self._finder = TelegramFinder(self._bot, self._chats, self._failures, _is_captioned)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return ABLE

    @property
    def finder(self) -> TelegramFinder:
        return self._finder

    # --- Coming in ---------------------------------------------------------------------------------------------------

    async def run(self, take: Take) -> None:
        self._lock.acquire()
        try:
            me = await self.who()
            await self._offer_commands()
            if self._account.webhook_url:
                # Not before it is wanted: the server takes long to import.
                from everthread.adapters.platforms.telegram import webhook  # noqa: PLC0415

                await webhook.serve(self._bot, self._account, self._secret, self._failures, self._taker(me, take))
            else:
                await poll(self._bot, self._transport, self._failures, self._taker(me, take))
        finally:
            self._lock.release()

    async def who(self) -> Bot:
        """Who one is there."""
        with self._failures.told():
            me = await self._bot.get_me()
        return Bot(self._name, me.id, me.username or "", self._account.trigger, frozenset(self._commands))

    def _taker(self, me: Bot, take: Take) -> Taker:
        async def one(update: telegram.Update | Unread) -> None:
            ours = self._ours(update, me)
            if ours is not None:
                await take(ours)
            if isinstance(update, Unread):
                return
            if update.message is not None:
                self._chats.numbers.saw(update.message.chat.id, update.message.message_id)
            if update.callback_query is not None:
                await self._confirm(update.callback_query.id)

        return one

    def _ours(self, update: telegram.Update | Unread, me: Bot) -> Incoming | None:
        if isinstance(update, Unread):
            return Unreadable(self._name, str(update.update_id), update.problem)
        try:
            ours = taken(update, me)
        except Exception as error:  # noqa: BLE001 - as with what can't be read at all
            return Unreadable(self._name, str(update.update_id), type(error).__name__)
        if isinstance(ours, MovedChat):
            self._chats.move(int(ours.chat), int(ours.to))
        return ours

    async def _confirm(self, query_id: str) -> None:
        """A button stops showing that it is being pressed. If that fails, it does so by itself."""
        try:
            await self._bot.answer_callback_query(query_id)
        except TelegramError as error:
            log.info("%s: a pressed button was not confirmed: %s", self._name, self._failures.words(error))

    async def _offer_commands(self) -> None:
        """The menu is a convenience: without it, everything can be written."""
        menu = [
            (name, help_line[:COMMAND_HELP_CHARS_MAX])
            for name, help_line in self._commands.items()
            if _COMMAND.fullmatch(name)
        ]
        try:
            await self._bot.set_my_commands(menu[:COMMANDS_MAX])
        except TelegramError as error:
            log.warning("%s: the menu of commands was not set: %s", self._name, self._failures.words(error))

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        much = f"{bytes_max // 1_000_000} MB" if bytes_max >= 1_000_000 else f"{bytes_max} bytes"
        too_large = PlatformRefused(f"it is larger than {much}")
        if (media.size or 0) > bytes_max:
            raise too_large
        with self._failures.told():
            address = (await self._bot.get_file(media.handle)).file_path or ""
            if not address.startswith(self._files_url):
                # The library would read a file of this machine that has the same name.
                raise PlatformRefused("it can't be fetched from there")
            path = quote(address.removeprefix(self._files_url))
            try:
                return await self._transport.file(self._files_url + path, bytes_max, UPLOAD_S)
            except TooLarge:
                raise too_large from None

    # --- Going out ---------------------------------------------------------------------------------------------------

    async def send(self, message: Outbound) -> str:
        _check(message.text, bool(message.files))
        keyboard = _keyboard(message.buttons)
        if _is_captioned(message):
            return await self._send_file(message.to, message.files[0], message.text, keyboard)
        message_id = await self._send_text(message.to, message.text, keyboard)
        for file in message.files:
            await self._send_file_besides(message.to, file)
        return message_id

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        _check(text)
        if not message_id.isdecimal():
            raise PlatformRefused("there is no such message")

        async def change(text: str, parse_mode: str | None) -> telegram.Message | bool:
            return await self._chats.act(
                to,
                lambda chat: self._bot.edit_message_text(
                    text, chat, int(message_id), reply_markup=_keyboard(buttons), parse_mode=parse_mode
                ),
            )

        with self._failures.told():
            try:
                changed = await formatted(text, change)
            except BadRequest as error:
                if NOT_CHANGED not in str(error).lower():
                    raise
                return
        if isinstance(changed, telegram.Message) and _is_elsewhere(changed, to):
            # A message that was found, and is not of those that were looked for: whoever misses it there finds it too.
            raise PlatformRefused("it is in another topic")

    async def show_typing(self, to: Address) -> None:
        with self._failures.told():
            await self._chats.act(
                to, lambda chat: self._bot.send_chat_action(chat, ChatAction.TYPING, _thread(to.thread))
            )

    async def aclose(self) -> None:
        self._lock.release()
        await self._transport.shutdown()

    async def _send_text(self, to: Address, text: str, keyboard: telegram.InlineKeyboardMarkup | None) -> str:
        async def say(text: str, parse_mode: str | None) -> str:
            return await self._chats.send(
                to,
                lambda chat: self._bot.send_message(
                    chat, text, parse_mode=parse_mode, message_thread_id=_thread(to.thread), reply_markup=keyboard
                ),
            )

        with self._failures.told(uncertain=True):
            return await formatted(text, say)

    async def _send_file(
        self, to: Address, file: File, caption: str, keyboard: telegram.InlineKeyboardMarkup | None = None
    ) -> str:
        if len(file.content) > FILE_BYTES_MAX:
            raise PlatformRefused(f"{file.name} is larger than Telegram takes ({FILE_BYTES_MAX // 1_000_000} MB)")
        content = telegram.InputFile(file.content, file.name)

        async def hand_over(text: str, parse_mode: str | None) -> str:
            try:
                return await hand_over_as(self._way_of(file), text, parse_mode)
            except BadRequest as error:
                if NOT_PARSED in str(error).lower():
                    raise
                # It is no picture that Telegram knows, or an odd one: it can be opened all the same.
                return await hand_over_as(self._bot.send_document, text, parse_mode)

        async def hand_over_as(send: Way, text: str, parse_mode: str | None) -> str:
            return await self._chats.send(
                to,
                lambda chat: send(
                    chat,
                    content,
                    caption=text or None,
                    parse_mode=parse_mode,
                    message_thread_id=_thread(to.thread),
                    reply_markup=keyboard,
                    read_timeout=UPLOAD_S,
                ),
            )

        with self._failures.told(uncertain=True):
            return await formatted(caption, hand_over)

    async def _send_file_besides(self, to: Address, file: File) -> None:
        """The text is out: whatever becomes of the file must not have it sent again."""
        try:
            await self._send_file(to, file, "")
        except PlatformError as error:
            log.warning("%s: a file was not sent: %s", self._name, error)

    def _way_of(self, file: File) -> Way:
        """As what a file is shown: a picture, a voice, or something to be opened."""
        kind = PurePath(file.name).suffix.lower()
        if kind in _PICTURES and len(file.content) <= PHOTO_BYTES_MAX:
            return self._bot.send_photo
        return self._bot.send_voice if kind in _VOICES else self._bot.send_document


def _is_captioned(message: Outbound) -> bool:
    """Whether it goes out as a file that its text stands under."""
    return len(message.files) == 1 and units(message.text) <= CAPTION_CHARS_MAX


def _check(text: str, empty: bool = False) -> None:
    if units(text) > CHARS_MAX or not (text.strip() or empty):
        raise PlatformRefused(f"a message has between 1 and {CHARS_MAX} characters")


def _keyboard(buttons: Sequence[Button]) -> telegram.InlineKeyboardMarkup | None:
    """A few short ones side by side, others one below another. A command that is too long can't be carried by a button;
    it can be written all the same.
    """
    made = [
        telegram.InlineKeyboardButton(button.label[:LABEL_CHARS_MAX], callback_data=button.command)
        for button in buttons
        if 0 < len(button.command.encode()) <= BUTTON_COMMAND_BYTES_MAX and button.label.strip()
    ]
    if not made:
        return None
    is_one_row = sum(len(button.text) for button in made) <= ROW_CHARS_MAX
    return telegram.InlineKeyboardMarkup([made] if is_one_row else [[button] for button in made])


def _is_elsewhere(message: telegram.Message, to: Address) -> bool:
    """Topics of a group are numbered together: of a number alone nobody knows in which it is."""
    is_in_topic = message.chat.type == telegram.Chat.SUPERGROUP and message.is_topic_message
    return bool(is_in_topic) and message.message_thread_id != _thread(to.thread)


def _thread(thread: str | None) -> int | None:
    return int(thread) if thread is not None and thread.isdecimal() else None
