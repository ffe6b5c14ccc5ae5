"""Bot API objects, with the fields that the emulator fills in."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct, field

ChatKind = Literal["private", "group", "supergroup", "channel"]


class User(Struct, frozen=True, omit_defaults=True):
    id: int
    is_bot: bool
    first_name: str
    username: str | None = None
    language_code: str | None = None
    can_join_groups: bool | None = None
    can_read_all_group_messages: bool | None = None
    supports_inline_queries: bool | None = None


class Chat(Struct, frozen=True, omit_defaults=True):
    id: int
    type: ChatKind
    title: str | None = None
    username: str | None = None
    first_name: str | None = None
    is_forum: bool | None = None


class MessageEntity(Struct, frozen=True, omit_defaults=True):
    """Entity of a text. Offsets and lengths are in UTF-16 code units."""

    type: str
    offset: int
    length: int
    url: str | None = None
    user: User | None = None
    language: str | None = None
    custom_emoji_id: str | None = None

    @property
    def end(self) -> int:
        return self.offset + self.length


class StoredFile(Struct, frozen=True, omit_defaults=True):
    """`File` object returned by `getFile`."""

    file_id: str
    file_unique_id: str
    file_size: int
    file_path: str | None = None


class PhotoSize(Struct, frozen=True, omit_defaults=True):
    file_id: str
    file_unique_id: str
    width: int
    height: int
    file_size: int


class Document(Struct, frozen=True, omit_defaults=True):
    file_id: str
    file_unique_id: str
    file_size: int
    file_name: str | None = None
    mime_type: str | None = None


class Voice(Struct, frozen=True, omit_defaults=True):
    file_id: str
    file_unique_id: str
    duration: int
    file_size: int
    mime_type: str | None = None


class InlineKeyboardButton(Struct, frozen=True, omit_defaults=True):
    text: str
    callback_data: str | None = None
    url: str | None = None
    switch_inline_query: str | None = None


class InlineKeyboardMarkup(Struct, frozen=True):
    inline_keyboard: tuple[tuple[InlineKeyboardButton, ...], ...]


class ForumTopic(Struct, frozen=True, omit_defaults=True):
    message_thread_id: int
    name: str
    icon_color: int


class ForumTopicCreated(Struct, frozen=True):
    name: str
    icon_color: int


class Message(Struct, frozen=True, omit_defaults=True, kw_only=True):
    message_id: int
    from_: User | None = field(default=None, name="from")
    chat: Chat
    date: int
    edit_date: int | None = None
    message_thread_id: int | None = None
    is_topic_message: bool | None = None
    reply_to_message: Message | None = None
    text: str | None = None
    entities: tuple[MessageEntity, ...] = ()
    caption: str | None = None
    caption_entities: tuple[MessageEntity, ...] = ()
    photo: tuple[PhotoSize, ...] = ()
    document: Document | None = None
    voice: Voice | None = None
    forum_topic_created: ForumTopicCreated | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    reply_markup: InlineKeyboardMarkup | None = None

    @property
    def words(self) -> str:
        return self.text or self.caption or ""

    @property
    def marks(self) -> tuple[MessageEntity, ...]:
        return self.entities or self.caption_entities

    @property
    def is_by_bot(self) -> bool:
        return self.from_ is not None and self.from_.is_bot


class CallbackQuery(Struct, frozen=True, omit_defaults=True):
    id: str
    from_: User = field(name="from")
    chat_instance: str
    message: Message | None = None
    data: str | None = None


class ChatMember(Struct, frozen=True, omit_defaults=True):
    status: Literal["member", "kicked"]
    user: User
    until_date: int | None = None


class ChatMemberUpdated(Struct, frozen=True):
    chat: Chat
    from_: User = field(name="from")
    date: int
    old_chat_member: ChatMember
    new_chat_member: ChatMember


class Update(Struct, frozen=True, omit_defaults=True):
    update_id: int
    message: Message | Raw | None = None
    """`Raw` holds JSON that no library can parse."""
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    my_chat_member: ChatMemberUpdated | None = None

    @property
    def kind(self) -> str:
        return next(name for name in UPDATE_KINDS if getattr(self, name) is not None)


UPDATE_KINDS = ("message", "edited_message", "callback_query", "my_chat_member")


class BotCommand(Struct, frozen=True):
    command: str
    description: str


class WebhookInfo(Struct, frozen=True, omit_defaults=True):
    url: str
    has_custom_certificate: bool
    pending_update_count: int
    ip_address: str | None = None
    last_error_date: int | None = None
    last_error_message: str | None = None
    max_connections: int | None = None
    allowed_updates: tuple[str, ...] = ()
