"""Bot API methods that show something in a chat: texts, files, edits, buttons, chat actions; and `getFile`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from everthread.testing.telegram.entities import utf16_len
from everthread.testing.telegram.errors import bad_request, rate_limited
from everthread.testing.telegram.files import DOWNLOAD_BYTES_MAX
from everthread.testing.telegram.formatting import Formatted, format_text
from everthread.testing.telegram.objects import (
    Chat,
    Document,
    ForumTopic,
    ForumTopicCreated,
    InlineKeyboardMarkup,
    Message,
    MessageEntity,
    PhotoSize,
    StoredFile,
    User,
    Voice,
)
from everthread.testing.telegram.params import Params, Upload
from everthread.testing.telegram.rate_limits import Limits
from everthread.testing.telegram.state import TelegramState

TEXT_UNITS_MAX = 4096
CAPTION_UNITS_MAX = 1024
CALLBACK_BYTES_MAX = 64
TOPIC_COLOR = 7322096

_NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same as a current "
    "content and reply markup of the message"
)
_USER_LINK = re.compile(r"tg://user\?id=(\d+)")
_ACTIONS = frozenset(
    "typing upload_photo record_video upload_video record_voice upload_voice upload_document choose_sticker "
    "find_location record_video_note upload_video_note".split()
)


class MessageMethods:
    def __init__(self, state: TelegramState, limits: Limits) -> None:
        self._state = state
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
            "sendphoto": self.send_photo,
            "senddocument": self.send_document,
            "sendvoice": self.send_voice,
            "getfile": self.get_file,
        }

    # --- Text --------------------------------------------------------------------------------------------------------

    def parse_text(self, params: Params) -> Formatted:
        text, entities = self._parse_markup(params, "text", "entities")
        if not text:
            raise bad_request("message text is empty")
        if utf16_len(text) > TEXT_UNITS_MAX:
            raise bad_request("message is too long")
        return text, entities

    def parse_caption(self, params: Params) -> tuple[str | None, tuple[MessageEntity, ...]]:
        text, entities = self._parse_markup(params, "caption", "caption_entities")
        if utf16_len(text) > CAPTION_UNITS_MAX:
            raise bad_request("message caption is too long")
        return text or None, entities

    def _parse_markup(self, params: Params, name: str, entities_name: str) -> Formatted:
        given = params.read(entities_name, list[MessageEntity], "entities") or ()
        # With a parse mode, the entities are ignored.
        parse_mode = params.text("parse_mode")
        text, entities = format_text(params.text(name), parse_mode, () if parse_mode else given)
        return text, tuple(one for entity in entities if (one := self._with_user(entity)))

    def _with_user(self, entity: MessageEntity) -> MessageEntity | None:
        """Turn a link to a user into a mention. Drop it if the bot does not know the user."""
        match = _USER_LINK.fullmatch(entity.url or "")
        if match is None:
            return entity
        user = self._state.users.get(int(match[1]))
        return MessageEntity("text_mention", entity.offset, entity.length, user=user) if user else None

    # --- Sending -----------------------------------------------------------------------------------------------------

    def send_message(self, params: Params) -> Message:
        text, entities = self.parse_text(params)
        return self.post(params, lambda message: replace(message, text=text, entities=entities))

    def post(self, params: Params, filled: Callable[[Message], Message]) -> Message:
        """Store a message of the bot in its chat and topic, and show it."""
        state, chat = self._state, self._state.writable_chat(params.text("chat_id"))
        markup = parse_keyboard(params)
        reply_to = self._replied_to(params, chat)
        message = state.new_message(chat, params.integer("message_thread_id") or None, reply_to)
        message = filled(replace(message, from_=_sender(state), reply_markup=markup))
        self._count(chat)
        state.store(message := replace(message, message_id=state.new_message_id(chat)))
        state.log("sent", message)
        return message

    def _replied_to(self, params: Params, chat: Chat) -> int | None:
        wanted = params.read("reply_parameters", dict[str, Any], "reply parameters") or {}
        reply_to = wanted.get("message_id") or params.integer("reply_to_message_id") or None
        if reply_to is None or reply_to in self._state.messages[chat.id]:
            return reply_to
        if wanted.get("allow_sending_without_reply") or params.flag("allow_sending_without_reply"):
            return None
        raise bad_request("message to be replied not found")

    def create_topic(self, params: Params) -> ForumTopic:
        state, chat = self._state, self._state.writable_chat(params.text("chat_id"))
        name = params.text("name").strip()
        if not chat.is_forum:
            raise bad_request("the chat is not a forum")
        if not name or len(name) > 128:
            raise bad_request("TOPIC_TITLE_EMPTY" if not name else "TOPIC_TITLE_INVALID")
        topic = new_topic(state, chat, name)
        state.store(replace(topic, from_=_sender(state)))
        return ForumTopic(topic.message_id, name, TOPIC_COLOR)

    # --- Files -------------------------------------------------------------------------------------------------------

    def send_photo(self, params: Params) -> Message:
        given = self._file_param(params, "photo")
        if isinstance(given, Upload):
            photo = self._state.files.photo(given.content)
        elif isinstance(given, PhotoSize):
            photo = (given,)
        else:
            raise bad_request("can't use file of type Document as Photo")
        return self._send_file(params, lambda message: replace(message, photo=photo))

    def send_document(self, params: Params) -> Message:
        given = self._file_param(params, "document")
        if isinstance(given, Upload):
            given = self._state.files.document(given.content, given.name, given.mime)
        if not isinstance(given, Document):
            raise bad_request("can't use file of type Photo as Document")
        return self._send_file(params, lambda message: replace(message, document=given))

    def send_voice(self, params: Params) -> Message:
        given = self._file_param(params, "voice")
        if isinstance(given, Upload):
            given = self._state.files.voice(given.content, params.integer("duration"), given.mime)
        if not isinstance(given, Voice):
            raise bad_request("can't use file of type Document as VoiceNote")
        return self._send_file(params, lambda message: replace(message, voice=given))

    def get_file(self, params: Params) -> StoredFile:
        stored = self._state.files.stored(params.text("file_id"))
        if stored.file_size > DOWNLOAD_BYTES_MAX:
            raise bad_request("file is too big")
        return stored

    def _send_file(self, params: Params, filled: Callable[[Message], Message]) -> Message:
        caption, entities = self.parse_caption(params)
        return self.post(params, lambda message: filled(replace(message, caption=caption, caption_entities=entities)))

    def _file_param(self, params: Params, name: str) -> Upload | PhotoSize | Document | Voice:
        """Return the uploaded file, also if it is attached under another name, or a stored file by its id."""
        wanted = params.text(name)
        upload = params.uploads.get(wanted.removeprefix("attach://") if wanted else name)
        if upload is not None:
            return upload
        if not wanted:
            raise bad_request(f"there is no {name} in the request")
        if wanted.startswith(("http://", "https://")):
            # The emulator downloads nothing.
            raise bad_request("failed to get HTTP URL content")
        return self._state.files.find(wanted)

    # --- Editing -----------------------------------------------------------------------------------------------------

    def edit_text(self, params: Params) -> Message:
        text, entities = self.parse_text(params)

        def edited(message: Message) -> Message:
            if message.text is None:
                raise bad_request("there is no text in the message to edit")
            return replace(message, text=text, entities=entities)

        return self._edit(params, edited)

    def edit_caption(self, params: Params) -> Message:
        caption, entities = self.parse_caption(params)

        def edited(message: Message) -> Message:
            if message.text is not None:
                raise bad_request("there is no caption in the message to edit")
            return replace(message, caption=caption, caption_entities=entities)

        return self._edit(params, edited)

    def edit_markup(self, params: Params) -> Message:
        return self._edit(params, lambda message: message)

    def _edit(self, params: Params, change: Callable[[Message], Message]) -> Message:
        state, chat = self._state, self._state.writable_chat(params.text("chat_id"))
        if not params.has("message_id"):
            raise bad_request("message identifier is not specified")
        before = state.messages[chat.id].get(params.integer("message_id"))
        if before is None:
            raise bad_request("message to edit not found")
        is_own = before.from_ is not None and before.from_.id == state.bot.id
        if not is_own or before.forum_topic_created is not None:
            raise bad_request("message can't be edited")
        # An edit without a keyboard removes the buttons.
        after = replace(change(before), reply_markup=parse_keyboard(params))
        if after == before:
            raise bad_request(_NOT_MODIFIED)
        self._count(chat)
        after = state.store(replace(after, edit_date=int(time.time())))
        state.log("edited", after)
        return after

    def delete(self, params: Params) -> bool:
        state, chat = self._state, self._state.writable_chat(params.text("chat_id"))
        message = state.messages[chat.id].pop(params.integer("message_id"), None)
        if message is None:
            raise bad_request("message to delete not found")
        state.log("deleted", message)
        return True

    # --- Chat actions and callback answers ---------------------------------------------------------------------------

    def chat_action(self, params: Params) -> bool:
        state, chat = self._state, self._state.writable_chat(params.text("chat_id"))
        action = params.text("action").lower()
        if action not in _ACTIONS:
            raise bad_request("wrong parameter action in request")
        placed = state.new_message(chat, params.integer("message_thread_id") or None, None)
        state.log("typing", placed, action, state.bot)
        return True

    def answer_query(self, params: Params) -> bool:
        query = self._state.queries.pop(params.text("callback_query_id"), None)
        if query is None or query.message is None:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        if utf16_len(text := params.text("text")) > 200:
            raise bad_request("MESSAGE_TOO_LONG")
        self._state.log("toast", query.message, text, query.from_)
        return True

    def _count(self, chat: Chat) -> None:
        wait_s = self._limits.wait_s(chat.id, time.monotonic())
        if wait_s:
            raise rate_limited(wait_s)


def new_topic(state: TelegramState, chat: Chat, name: str) -> Message:
    """Create the message that opens a topic. Its id is the topic's id."""
    number = state.new_message_id(chat)
    return Message(
        message_id=number,
        chat=chat,
        date=int(time.time()),
        message_thread_id=number,
        is_topic_message=True,
        forum_topic_created=ForumTopicCreated(name, TOPIC_COLOR),
    )


def parse_keyboard(params: Params) -> InlineKeyboardMarkup | None:
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


def _sender(state: TelegramState) -> User:
    """The bot as the sender of messages, without the fields that only `getMe` returns."""
    bot = state.bot
    return replace(bot, can_join_groups=None, can_read_all_group_messages=None, supports_inline_queries=None)
