"""Bot API methods that show something in a chat: texts, edits, buttons, chat actions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from everthread.testing.telegram.entities import utf16_len
from everthread.testing.telegram.errors import bad_request, rate_limited
from everthread.testing.telegram.formatting import Formatted, format_text
from everthread.testing.telegram.limits import Limits
from everthread.testing.telegram.objects import (
    Chat,
    ForumTopic,
    ForumTopicCreated,
    InlineKeyboardMarkup,
    Message,
    MessageEntity,
    User,
)
from everthread.testing.telegram.params import Params
from everthread.testing.telegram.state import TelegramState

TEXT_UNITS_MAX = 4096
CAPTION_UNITS_MAX = 1024
CALLBACK_BYTES_MAX = 64
TOPIC_COLOR = 7322096

_NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same as a current "
    "content and reply markup of the message"
)
_PERSON = re.compile(r"tg://user\?id=(\d+)")
_ACTIONS = frozenset(
    "typing upload_photo record_video upload_video record_voice upload_voice upload_document choose_sticker "
    "find_location record_video_note upload_video_note".split()
)


class MessageMethods:
    def __init__(self, world: TelegramState, limits: Limits) -> None:
        self._world = world
        self._limits = limits
        self.methods: Mapping[str, Callable[[Params], object]] = {
            "sendmessage": self.send_message,
            "editmessagetext": self.edit_text,
            "editmessagecaption": self.edit_caption,
            "editmessagereplymarkup": self.edit_markup,
            "deletemessage": self.delete,
            "sendchataction": self.chat_action,
            "answercallbackquery": self.answer_query,
            "createforumtopic": self.create_topic,
        }

    # --- Text --------------------------------------------------------------------------------------------------------

    def text_of(self, params: Params) -> Formatted:
        text, entities = self._words(params, "text", "entities")
        if not text:
            raise bad_request("message text is empty")
        if utf16_len(text) > TEXT_UNITS_MAX:
            raise bad_request("message is too long")
        return text, entities

    def caption_of(self, params: Params) -> tuple[str | None, tuple[MessageEntity, ...]]:
        text, entities = self._words(params, "caption", "caption_entities")
        if utf16_len(text) > CAPTION_UNITS_MAX:
            raise bad_request("message caption is too long")
        return text or None, entities

    def _words(self, params: Params, name: str, entities_name: str) -> Formatted:
        given = params.read(entities_name, list[MessageEntity], "entities") or ()
        # With a parse mode, the entities are ignored.
        parse_mode = params.text("parse_mode")
        text, entities = format_text(params.text(name), parse_mode, () if parse_mode else given)
        return text, tuple(one for entity in entities if (one := self._with_person(entity)))

    def _with_person(self, entity: MessageEntity) -> MessageEntity | None:
        """Turn a link to a user into a mention. Drop it if the bot does not know the user."""
        match = _PERSON.fullmatch(entity.url or "")
        if match is None:
            return entity
        user = self._world.users.get(int(match[1]))
        return MessageEntity("text_mention", entity.offset, entity.length, user=user) if user else None

    # --- Sending -----------------------------------------------------------------------------------------------------

    def send_message(self, params: Params) -> Message:
        text, entities = self.text_of(params)
        return self.post(params, lambda message: replace(message, text=text, entities=entities))

    def post(self, params: Params, filled: Callable[[Message], Message]) -> Message:
        """Store a message of the bot in its chat and topic, and show it."""
        world, chat = self._world, self._world.writable_chat(params.text("chat_id"))
        markup = keyboard_of(params)
        reply_to = self._answered(params, chat)
        message = world.placed(chat, params.integer("message_thread_id") or None, reply_to)
        message = filled(replace(message, from_=_plain(world), reply_markup=markup))
        self._count(chat)
        world.keep(message := replace(message, message_id=world.new_message_id(chat)))
        world.show("sent", message)
        return message

    def _answered(self, params: Params, chat: Chat) -> int | None:
        wanted = params.read("reply_parameters", dict[str, Any], "reply parameters") or {}
        reply_to = wanted.get("message_id") or params.integer("reply_to_message_id") or None
        if reply_to is None or reply_to in self._world.messages[chat.id]:
            return reply_to
        if wanted.get("allow_sending_without_reply") or params.flag("allow_sending_without_reply"):
            return None
        raise bad_request("message to be replied not found")

    def create_topic(self, params: Params) -> ForumTopic:
        world, chat = self._world, self._world.writable_chat(params.text("chat_id"))
        name = params.text("name").strip()
        if not chat.is_forum:
            raise bad_request("the chat is not a forum")
        if not name or len(name) > 128:
            raise bad_request("TOPIC_TITLE_EMPTY" if not name else "TOPIC_TITLE_INVALID")
        topic = opened_topic(world, chat, name)
        world.keep(replace(topic, from_=_plain(world)))
        return ForumTopic(topic.message_id, name, TOPIC_COLOR)

    # --- Editing -----------------------------------------------------------------------------------------------------

    def edit_text(self, params: Params) -> Message:
        text, entities = self.text_of(params)

        def edited(message: Message) -> Message:
            if message.text is None:
                raise bad_request("there is no text in the message to edit")
            return replace(message, text=text, entities=entities)

        return self._edit(params, edited)

    def edit_caption(self, params: Params) -> Message:
        caption, entities = self.caption_of(params)

        def edited(message: Message) -> Message:
            if message.text is not None:
                raise bad_request("there is no caption in the message to edit")
            return replace(message, caption=caption, caption_entities=entities)

        return self._edit(params, edited)

    def edit_markup(self, params: Params) -> Message:
        return self._edit(params, lambda message: message)

    def _edit(self, params: Params, change: Callable[[Message], Message]) -> Message:
        world, chat = self._world, self._world.writable_chat(params.text("chat_id"))
        if not params.has("message_id"):
            raise bad_request("message identifier is not specified")
        before = world.messages[chat.id].get(params.integer("message_id"))
        if before is None:
            raise bad_request("message to edit not found")
        is_own = before.from_ is not None and before.from_.id == world.bot.id
        if not is_own or before.forum_topic_created is not None:
            raise bad_request("message can't be edited")
        # An edit without a keyboard removes the buttons.
        after = replace(change(before), reply_markup=keyboard_of(params))
        if after == before:
            raise bad_request(_NOT_MODIFIED)
        self._count(chat)
        after = world.keep(replace(after, edit_date=int(time.time())))
        world.show("edited", after)
        return after

    def delete(self, params: Params) -> bool:
        world, chat = self._world, self._world.writable_chat(params.text("chat_id"))
        message = world.messages[chat.id].pop(params.integer("message_id"), None)
        if message is None:
            raise bad_request("message to delete not found")
        world.show("deleted", message)
        return True

    # --- Chat actions and callback answers ---------------------------------------------------------------------------

    def chat_action(self, params: Params) -> bool:
        world, chat = self._world, self._world.writable_chat(params.text("chat_id"))
        action = params.text("action").lower()
        if action not in _ACTIONS:
            raise bad_request("wrong parameter action in request")
        placed = world.placed(chat, params.integer("message_thread_id") or None, None)
        world.show("typing", placed, action, world.bot)
        return True

    def answer_query(self, params: Params) -> bool:
        query = self._world.queries.pop(params.text("callback_query_id"), None)
        if query is None or query.message is None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        if utf16_len(text := params.text("text")) > 200:
            raise bad_request("MESSAGE_TOO_LONG")
        self._world.show("toast", query.message, text, query.from_)
        return True

    def _count(self, chat: Chat) -> None:
        wait_s = self._limits.wait_s(chat.id, time.monotonic())
        if wait_s:
            raise rate_limited(wait_s)


def opened_topic(world: TelegramState, chat: Chat, name: str) -> Message:
    """Create the message that opens a topic. Its id is the topic's id."""
    number = world.new_message_id(chat)
    return Message(
        message_id=number,
        chat=chat,
        date=int(time.time()),
        message_thread_id=number,
        is_topic_message=True,
        forum_topic_created=ForumTopicCreated(name, TOPIC_COLOR),
    )


def keyboard_of(params: Params) -> InlineKeyboardMarkup | None:
    """Parse an inline keyboard. Reply keyboards are not shown in the chat and are ignored."""
    raw = params.read("reply_markup", dict[str, Any], "reply keyboard markup JSON object")
    if not raw or "inline_keyboard" not in raw:
        return None
    try:
        markup = msgspec.convert(raw, InlineKeyboardMarkup)
    except msgspec.ValidationError as error:
        raise bad_request(f"can't parse inline keyboard button: {error}") from error
    buttons = [button for row in markup.inline_keyboard for button in row]
    for button in buttons:
        if not button.text:
            raise bad_request('can\'t parse inline keyboard button: Field "text" must be non-empty')
        if len((button.callback_data or "").encode()) > CALLBACK_BYTES_MAX:
            raise bad_request("BUTTON_DATA_INVALID")
        if button.callback_data is None and button.url is None and button.switch_inline_query is None:
            raise bad_request("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
    return markup if buttons else None


def _plain(world: TelegramState) -> User:
    """The bot as the sender of messages, without the fields that only `getMe` returns."""
    bot = world.bot
    return replace(bot, can_join_groups=None, can_read_all_group_messages=None, supports_inline_queries=None)
