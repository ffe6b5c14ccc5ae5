"""What comes from Telegram as the gateway takes it in. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import telegram
from msgspec import Struct

from everthread.config.settings import Trigger
from everthread.domain.model import ChatType
from everthread.ports.platform import Media, MediaKind, MovedChat, Quoted, Update

WANTED = ("message", "callback_query")
"""The kinds of updates that are asked for."""

_BEGUN = re.compile(r"/start(?:@\w+)?(?=\s|$)")
_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@(\w+))?(?=\s|$)")


class Bot(Struct, frozen=True):
    """Who one is there, and what one answers to in a group."""

    platform: str
    id: int
    username: str
    trigger: Trigger = "mention"
    commands: Collection[str] = ()
    """Names of those that are ours: others' are left to them."""


class Unread(Struct, frozen=True):
    """An update that the library makes nothing of, and why."""

    update_id: int
    problem: str


def read(raw: Mapping[str, Any], bot: telegram.Bot) -> telegram.Update | Unread:
    try:
        return telegram.Update.de_json(dict(raw), bot)
    except Exception as error:  # noqa: BLE001 - whatever it trips over; what is said of it may repeat the update
        return Unread(int(raw["update_id"]), type(error).__name__)


def taken(update: telegram.Update, bot: Bot) -> Update | MovedChat | None:
    """The update as ours; `None` if it is none that concerns the agent."""
    if update.callback_query is not None:
        return _pressed(update, update.callback_query, bot)
    if update.message is None:
        return None
    if (moved := _moved(update.message, bot)) is not None:
        return moved
    return _said(update, update.message, bot)


def _moved(message: telegram.Message, bot: Bot) -> MovedChat | None:
    """A group became a supergroup. It is said in both: in each before anything else is there."""
    if message.migrate_to_chat_id is not None:
        return MovedChat(bot.platform, str(message.chat.id), str(message.migrate_to_chat_id))
    if message.migrate_from_chat_id is not None:
        return MovedChat(bot.platform, str(message.migrate_from_chat_id), str(message.chat.id))
    return None


def _pressed(update: telegram.Update, query: telegram.CallbackQuery, bot: Bot) -> Update | None:
    shown = query.message
    # Of a message that is very old only the chat is known: where there are topics, that is not enough.
    if shown is None or not query.data or (not shown.is_accessible and shown.chat.is_forum):
        return None
    chat_type, thread = _where(shown)
    return Update(
        bot.platform,
        str(bot.id),
        str(update.update_id),
        str(shown.chat.id),
        chat_type,
        str(query.from_user.id),
        query.data,
        thread,
        query.from_user.full_name,
    )


def _said(update: telegram.Update, message: telegram.Message, bot: Bot) -> Update | None:
    user, name = _who(message)
    if not user or (message.chat.type != telegram.Chat.PRIVATE and not _is_meant(message, bot)):
        return None
    chat_type, thread = _where(message)
    media = tuple(_media(message))
    text = _words(message, bot)
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


def _where(message: telegram.MaybeInaccessibleMessage) -> tuple[ChatType, str | None]:
    # A number of a thread is also given to answers in a group without topics: these are no place of their own.
    thread: str | None = None
    if isinstance(message, telegram.Message) and message.is_topic_message and message.message_thread_id:
        thread = str(message.message_thread_id)
    if message.chat.type == telegram.Chat.PRIVATE:
        return ChatType.DM, thread
    return (ChatType.THREAD if thread else ChatType.GROUP), thread


def _who(message: telegram.Message) -> tuple[str, str]:
    """Who wrote it; nobody if that was another bot. Whoever writes as a group is that group."""
    if message.sender_chat is not None:
        return str(message.sender_chat.id), message.sender_chat.title or ""
    if message.from_user is None or message.from_user.is_bot:
        return "", ""
    return str(message.from_user.id), message.from_user.full_name


def _is_meant(message: telegram.Message, bot: Bot) -> bool:
    """Whether what was said in a group is for the agent."""
    if command := _COMMAND.match(message.text or ""):
        name, whose = command[1].lower(), command[2]
        return whose.lower() == bot.username.lower() if whose else name in bot.commands
    if bot.trigger == "all":
        return True
    answered = message.reply_to_message
    if answered is not None and answered.from_user is not None and answered.from_user.id == bot.id:
        # The message that opens a topic stands for no answer, whoever has opened it.
        return answered.forum_topic_created is None
    return _is_mentioned(message, bot)


def _is_mentioned(message: telegram.Message, bot: Bot) -> bool:
    for entity, words in {**message.parse_entities(), **message.parse_caption_entities()}.items():
        if entity.type == entity.MENTION and words.lower() == f"@{bot.username.lower()}":
            return True
        if entity.type == entity.TEXT_MENTION and entity.user is not None and entity.user.id == bot.id:
            return True
    return False


def _words(message: telegram.Message, bot: Bot) -> str:
    """What was said, without the name that it began with to be heard at all."""
    text = message.text or message.caption or ""
    if not text and message.sticker is not None:
        text = message.sticker.emoji or ""
    if message.chat.type == telegram.Chat.PRIVATE and _BEGUN.match(text):
        # The button under which everybody begins. What is behind it is for whoever made the link.
        return "/help"
    called = f"@{bot.username}"
    if message.chat.type != telegram.Chat.PRIVATE and text.lower().startswith(called.lower()):
        rest = text[len(called) :]
        if not rest[:1].isalnum() and not rest.startswith("_"):
            return rest.lstrip(" ,:;\n") or text
    return text


def _quoted(message: telegram.Message) -> Quoted | None:
    answered = message.reply_to_message
    if answered is None or answered.forum_topic_created is not None:
        return None
    words = message.quote.text if message.quote is not None else answered.text or answered.caption or ""
    return Quoted(words, answered.from_user.full_name if answered.from_user is not None else "") if words else None


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
