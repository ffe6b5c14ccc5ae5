"""Platform adapter of one Telegram bot."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePath
from urllib.parse import quote

import telegram
from telegram.constants import ChatAction
from telegram.error import BadRequest, TelegramError

from everthread.adapters.platforms.telegram.delivery_check import NOT_MODIFIED, TelegramFinder
from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import CALL_S, AiohttpRequest, ResponseTooLarge
from everthread.adapters.platforms.telegram.markdown import CHARS_MAX, utf16_length
from everthread.adapters.platforms.telegram.polling import UpdateHandler, poll
from everthread.adapters.platforms.telegram.sender import PARSE_ERROR, ChatSender, with_markdown
from everthread.adapters.platforms.telegram.token_lock import TokenLock
from everthread.adapters.platforms.telegram.updates import BotIdentity, UnparsedUpdate, convert_update
from everthread.config.schema import PlatformAccount
from everthread.domain.errors import PlatformError, PlatformRefused
from everthread.log_context import Private
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
"""Characters of button labels that fit in one row on a phone."""
COMMANDS_MAX = 100
COMMAND_HELP_CHARS_MAX = 256

_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")
_VOICES = (".ogg", ".oga")

SendMethod = Callable[..., Awaitable[telegram.Message]]

CAPABILITIES = Capabilities(
    CHARS_MAX,
    edits=True,
    # Telegram allows about one message a second in a chat and twenty a minute in a group, edits included.
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
        """`commands` are the entries of the bot's menu, with their help. `secret` authenticates webhook requests."""
        self._name = name
        self._account = account
        self._lock = lock
        self._commands = commands
        self._secret = secret
        self._errors = ErrorTranslator(token, call_s)
        self._chats = ChatSender()
        self._http = AiohttpRequest(call_s)
        # The library logs the token.
        logging.getLogger("telegram").setLevel(logging.WARNING)
        base_url = account.base_url or BASE_URL
        self._files_url = f"{base_url}/file/bot{token}/"
        self._bot = telegram.Bot(
            token,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=self._http,
            get_updates_request=self._http,
        )
        self._finder = TelegramFinder(self._bot, self._chats, self._errors, _is_captioned)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def finder(self) -> TelegramFinder:
        return self._finder

    # Inbound ----------------------------------------------------------------------------------------------------------

    async def run(self, take: Take) -> None:
        self._lock.acquire()
        try:
            identity = await self.who()
            await self._set_commands()
            if self._account.webhook_url:
                # Imported late: the HTTP server is slow to import.
                from everthread.adapters.platforms.telegram import webhook  # noqa: PLC0415

                await webhook.serve(self._bot, self._account, self._secret, self._errors, self._handler(identity, take))
            else:
                await poll(self._bot, self._http, self._errors, self._handler(identity, take))
        finally:
            self._lock.release()

    async def who(self) -> BotIdentity:
        """Return the bot's account."""
        with self._errors.translate():
            me = await self._bot.get_me()
        return BotIdentity(self._name, me.id, me.username or "", self._account.trigger, frozenset(self._commands))

    def _handler(self, identity: BotIdentity, take: Take) -> UpdateHandler:
        async def handle(update: telegram.Update | UnparsedUpdate) -> None:
            incoming = self._convert(update, identity)
            if incoming is not None:
                await take(incoming)
            if isinstance(update, UnparsedUpdate):
                return
            if update.message is not None:
                self._chats.message_ids.add(update.message.chat.id, update.message.message_id)
            if update.callback_query is not None:
                await self._answer_button(update.callback_query.id)

        return handle

    def _convert(self, update: telegram.Update | UnparsedUpdate, identity: BotIdentity) -> Incoming | None:
        if isinstance(update, UnparsedUpdate):
            return Unreadable(self._name, str(update.update_id), update.problem)
        try:
            incoming = convert_update(update, identity)
        except Exception as error:  # noqa: BLE001 - treated like an update that can't be parsed
            return Unreadable(self._name, str(update.update_id), type(error).__name__)
        if isinstance(incoming, MovedChat):
            self._chats.move(int(incoming.chat), int(incoming.to))
        return incoming

    async def _answer_button(self, query_id: str) -> None:
        """Stop the progress indicator of a button. If that fails, it disappears by itself."""
        try:
            await self._bot.answer_callback_query(query_id)
        except TelegramError as error:
            log.info(
                "%s: could not confirm a button press: %s",
                self._name,
                Private(self._errors.message_of(error)),
            )

    async def _set_commands(self) -> None:
        """Set the bot's menu. A failure is only logged: commands can be typed."""
        menu = [
            (name, help_line[:COMMAND_HELP_CHARS_MAX])
            for name, help_line in self._commands.items()
            if _COMMAND.fullmatch(name)
        ]
        try:
            await self._bot.set_my_commands(menu[:COMMANDS_MAX])
        except TelegramError as error:
            log.warning(
                "%s: could not set the menu of commands: %s",
                self._name,
                Private(self._errors.message_of(error)),
            )

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        limit = f"{bytes_max // 1_000_000} MB" if bytes_max >= 1_000_000 else f"{bytes_max} bytes"
        too_large = PlatformRefused(f"it is larger than {limit}")
        if (media.size or 0) > bytes_max:
            raise too_large
        with self._errors.translate():
            url = (await self._bot.get_file(media.handle)).file_path or ""
            if not url.startswith(self._files_url):
                # A local Bot API server returns a path, and the library would read a file of this machine.
                raise PlatformRefused("it can't be fetched from there")
            path = quote(url.removeprefix(self._files_url))
            try:
                return await self._http.download(self._files_url + path, bytes_max, UPLOAD_S)
            except ResponseTooLarge:
                raise too_large from None

    # Outbound ---------------------------------------------------------------------------------------------------------

    async def send(self, message: Outbound) -> str:
        _check(message.text, bool(message.files))
        keyboard = _keyboard(message.buttons)
        if _is_captioned(message):
            return await self._send_file(message.to, message.files[0], message.text, keyboard)
        message_id = await self._send_text(message.to, message.text, keyboard)
        for file in message.files:
            await self._send_extra_file(message.to, file)
        return message_id

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        _check(text)
        if not message_id.isdecimal():
            raise PlatformRefused("there is no such message")

        async def change(text: str, parse_mode: str | None) -> telegram.Message | bool:
            return await self._chats.call(
                to,
                lambda chat: self._bot.edit_message_text(
                    text, chat, int(message_id), reply_markup=_keyboard(buttons), parse_mode=parse_mode
                ),
            )

        with self._errors.translate():
            try:
                changed = await with_markdown(text, change)
            except BadRequest as error:
                if NOT_MODIFIED not in str(error).lower():
                    raise
                return
        if isinstance(changed, telegram.Message) and _is_in_other_topic(changed, to):
            # The delivery check found a message in another topic by mistake: report it, so that it is sent again.
            raise PlatformRefused("it is in another topic")

    async def show_typing(self, to: Address) -> None:
        with self._errors.translate():
            await self._chats.call(
                to, lambda chat: self._bot.send_chat_action(chat, ChatAction.TYPING, _thread(to.thread))
            )

    async def aclose(self) -> None:
        self._lock.release()
        await self._http.shutdown()

    async def _send_text(self, to: Address, text: str, keyboard: telegram.InlineKeyboardMarkup | None) -> str:
        async def send(text: str, parse_mode: str | None) -> str:
            return await self._chats.send(
                to,
                lambda chat: self._bot.send_message(
                    chat, text, parse_mode=parse_mode, message_thread_id=_thread(to.thread), reply_markup=keyboard
                ),
            )

        with self._errors.translate(uncertain=True):
            return await with_markdown(text, send)

    async def _send_file(
        self, to: Address, file: File, caption: str, keyboard: telegram.InlineKeyboardMarkup | None = None
    ) -> str:
        if len(file.content) > FILE_BYTES_MAX:
            raise PlatformRefused(f"{file.name} is larger than Telegram allows ({FILE_BYTES_MAX // 1_000_000} MB)")
        content = telegram.InputFile(file.content, file.name)

        async def send_formatted(text: str, parse_mode: str | None) -> str:
            try:
                return await send_as(self._send_method(file), text, parse_mode)
            except BadRequest as error:
                if PARSE_ERROR in str(error).lower():
                    raise
                # Telegram does not accept it as a picture or voice message: send it as a document.
                return await send_as(self._bot.send_document, text, parse_mode)

        async def send_as(send: SendMethod, text: str, parse_mode: str | None) -> str:
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

        with self._errors.translate(uncertain=True):
            return await with_markdown(caption, send_formatted)

    async def _send_extra_file(self, to: Address, file: File) -> None:
        """Send a file after its text. A failure is only logged, so that the text is not sent again."""
        try:
            await self._send_file(to, file, "")
        except PlatformError as error:
            log.warning("%s: could not send a file: %s", self._name, error)

    def _send_method(self, file: File) -> SendMethod:
        """Choose the method for a file: photo, voice message or document."""
        kind = PurePath(file.name).suffix.lower()
        if kind in _PICTURES and len(file.content) <= PHOTO_BYTES_MAX:
            return self._bot.send_photo
        return self._bot.send_voice if kind in _VOICES else self._bot.send_document


def _is_captioned(message: Outbound) -> bool:
    """Tell whether a message is sent as a file with a caption."""
    return len(message.files) == 1 and utf16_length(message.text) <= CAPTION_CHARS_MAX


def _check(text: str, empty: bool = False) -> None:
    if utf16_length(text) > CHARS_MAX or not (text.strip() or empty):
        raise PlatformRefused(f"a message has between 1 and {CHARS_MAX} characters")


def _keyboard(buttons: Sequence[Button]) -> telegram.InlineKeyboardMarkup | None:
    """Arrange buttons: short ones in one row, others below one another. Commands that are too long are left out."""
    keys = [
        telegram.InlineKeyboardButton(button.label[:LABEL_CHARS_MAX], callback_data=button.command)
        for button in buttons
        if 0 < len(button.command.encode()) <= BUTTON_COMMAND_BYTES_MAX and button.label.strip()
    ]
    if not keys:
        return None
    is_one_row = sum(len(button.text) for button in keys) <= ROW_CHARS_MAX
    return telegram.InlineKeyboardMarkup([keys] if is_one_row else [[button] for button in keys])


def _is_in_other_topic(message: telegram.Message, to: Address) -> bool:
    """Tell whether a message is in another topic: the topics of a group share one sequence of ids."""
    is_in_topic = message.chat.type == telegram.Chat.SUPERGROUP and message.is_topic_message
    return bool(is_in_topic) and message.message_thread_id != _thread(to.thread)


def _thread(thread: str | None) -> int | None:
    return int(thread) if thread is not None and thread.isdecimal() else None
