"""Convert updates of Telegram to updates of the gateway. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import telegram
from msgspec import Struct

from everthread.config.schema import Trigger
from everthread.domain.model import ChatType
from everthread.ports.platform import Media, MediaKind, MovedChat, Quoted, Update

UPDATE_KINDS = ("message", "callback_query")
"""Kinds of updates that are requested."""

_START = re.compile(r"/start(?:@\w+)?(?=\s|$)")
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@(\w+))?(?=\s|$)")


class BotIdentity(Struct, frozen=True):
    """The bot's account, and what it answers to in a group."""

    platform: str
    id: int
    username: str
    trigger: Trigger = "mention"
    commands: Collection[str] = ()
    """Names of our commands; those of other bots are ignored."""


class UnparsedUpdate(Struct, frozen=True):
    """An update that the library can't parse, and the reason."""

    update_id: int
    problem: str


def parse_update(raw: Mapping[str, Any], bot: telegram.Bot) -> telegram.Update | UnparsedUpdate:
    try:
        return telegram.Update.de_json(dict(raw), bot)
    except Exception as error:  # noqa: BLE001 - the library raises anything; the message may quote the update
        return UnparsedUpdate(int(raw["update_id"]), type(error).__name__)


def convert_update(update: telegram.Update, bot: BotIdentity) -> Update | MovedChat | None:
    """Convert an update; `None` if it is not for the agent."""
    if update.callback_query is not None:
        return _convert_button(update, update.callback_query, bot)
    if update.message is None:
        return None
    if (move := _convert_move(update.message, bot)) is not None:
        return move
    return _convert_message(update, update.message, bot)


def _convert_move(message: telegram.Message, bot: BotIdentity) -> MovedChat | None:
    """Convert the notice that a group became a supergroup. It is sent to both chats, before any other message."""
    if message.migrate_to_chat_id is not None:
        return MovedChat(bot.platform, str(message.chat.id), str(message.migrate_to_chat_id))
    if message.migrate_from_chat_id is not None:
        return MovedChat(bot.platform, str(message.migrate_from_chat_id), str(message.chat.id))
    return None


def _convert_button(update: telegram.Update, query: telegram.CallbackQuery, bot: BotIdentity) -> Update | None:
    message = query.message
    # Of a very old message only the chat is known, which is not enough in a forum.
    if message is None or not query.data or (not message.is_accessible and message.chat.is_forum):
        return None
    chat_type, thread = _chat_type(message)
    return Update(
        bot.platform,
        str(bot.id),
        str(update.update_id),
        str(message.chat.id),
        chat_type,
        str(query.from_user.id),
        query.data,
        thread,
        query.from_user.full_name,
    )


def _convert_message(update: telegram.Update, message: telegram.Message, bot: BotIdentity) -> Update | None:
    user, name = _sender(message)
    if not user or (message.chat.type != telegram.Chat.PRIVATE and not _is_for_us(message, bot)):
        return None
    chat_type, thread = _chat_type(message)
    media = tuple(_media(message))
    text = _message_text(message, bot)
    if not text and not media:
        return None
    return Update(
        bot.platform,
        str(bot.id),
        str(update.update_id),
        str(message.chat.id),
        chat_type,
        user,
        text,
        thread,
        name,
        media,
        _quoted(message),
        str(message.message_id),
    )


def _chat_type(message: telegram.MaybeInaccessibleMessage) -> tuple[ChatType, str | None]:
    # Replies in a group without topics have a thread id too, but belong to the group.
    thread: str | None = None
    if isinstance(message, telegram.Message) and message.is_topic_message and message.message_thread_id:
        thread = str(message.message_thread_id)
    if message.chat.type == telegram.Chat.PRIVATE:
        return ChatType.DM, thread
    return (ChatType.THREAD if thread else ChatType.GROUP), thread


def _sender(message: telegram.Message) -> tuple[str, str]:
    """Return id and name of the sender; empty for another bot. An anonymous admin counts as the group."""
    if message.sender_chat is not None:
        return str(message.sender_chat.id), message.sender_chat.title or ""
    if message.from_user is None or message.from_user.is_bot:
        return "", ""
    return str(message.from_user.id), message.from_user.full_name


def _is_for_us(message: telegram.Message, bot: BotIdentity) -> bool:
    """Tell whether a message in a group is for the agent."""
    if command := _COMMAND.match(message.text or ""):
        name, mentioned = command[1].lower(), command[2]
        return mentioned.lower() == bot.username.lower() if mentioned else name in bot.commands
    if bot.trigger == "all":
        return True
    replied_to = message.reply_to_message
    if replied_to is not None and replied_to.from_user is not None and replied_to.from_user.id == bot.id:
        # Messages in a topic reply to the one that opened it, which means nothing.
        return replied_to.forum_topic_created is None
    return _is_mentioned(message, bot)


def _is_mentioned(message: telegram.Message, bot: BotIdentity) -> bool:
    for entity, text in {**message.parse_entities(), **message.parse_caption_entities()}.items():
        if entity.type == entity.MENTION and text.lower() == f"@{bot.username.lower()}":
            return True
        if entity.type == entity.TEXT_MENTION and entity.user is not None and entity.user.id == bot.id:
            return True
    return False


def _message_text(message: telegram.Message, bot: BotIdentity) -> str:
    """Return the text, without a leading mention of the bot."""
    text = message.text or message.caption or ""
    if not text and message.sticker is not None:
        text = message.sticker.emoji or ""
    if message.chat.type == telegram.Chat.PRIVATE and _START.match(text):
        # The start button. Its parameter comes from a link, and is ignored.
        return "/help"
    mention = f"@{bot.username}"
    if message.chat.type != telegram.Chat.PRIVATE and text.lower().startswith(mention.lower()):
        rest = text[len(mention) :]
        if not rest[:1].isalnum() and not rest.startswith("_"):
            return rest.lstrip(" ,:;\n") or text
    return text


def _quoted(message: telegram.Message) -> Quoted | None:
    replied_to = message.reply_to_message
    if replied_to is None or replied_to.forum_topic_created is not None:
        return None
    text = message.quote.text if message.quote is not None else replied_to.text or replied_to.caption or ""
    return Quoted(text, replied_to.from_user.full_name if replied_to.from_user is not None else "") if text else None


def _media(message: telegram.Message) -> Iterable[Media]:
    if message.photo:
        largest = message.photo[-1]
        yield Media("image", "photo.jpg", "image/jpeg", largest.file_size, largest.file_id)
    if message.voice is not None:
        voice = message.voice
        yield Media("voice", "voice.ogg", voice.mime_type or "audio/ogg", voice.file_size, voice.file_id)
    for kind, found in (("audio", message.audio), ("video", message.video), ("file", message.document)):
        if found is not None:
            name, mime = found.file_name or kind, found.mime_type or ""
            yield Media(_kind(kind, mime), name, mime, found.file_size, found.file_id)
    if message.video_note is not None:
        yield Media("video", "video.mp4", "video/mp4", message.video_note.file_size, message.video_note.file_id)


def _kind(kind: str, mime: str) -> MediaKind:
    first = mime.partition("/")[0]
    if kind == "file" and first in ("image", "audio", "video"):
        kind = first
    return "image" if kind == "image" else "audio" if kind == "audio" else "video" if kind == "video" else "file"
