"""Actions of users: write, edit, press buttons, open topics, block the bot."""

from __future__ import annotations

import time

from msgspec.structs import replace

from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.entities import utf16_len
from everthread.testing.telegram.errors import bad_request
from everthread.testing.telegram.formatting import format_text, utf16_slice
from everthread.testing.telegram.message_methods import new_topic
from everthread.testing.telegram.objects import (
    CallbackQuery,
    Chat,
    ChatMember,
    ChatMemberUpdated,
    InlineKeyboardButton,
    Message,
    User,
)
from everthread.testing.telegram.state import TelegramState


class UserActions:
    """Carry out actions of users. Raises a refusal if an action is impossible."""

    def __init__(self, state: TelegramState) -> None:
        self._state = state

    def introduce(self, person: wire.UserProfile) -> None:
        user = User(person.id, False, person.first_name, person.username, person.language_code)
        self._state.users[person.id] = user
        if self._state.chats.pop(person.id, None) is not None:
            self._state.private_chat(person.id)

    def create_group(self, group: wire.Group) -> None:
        if group.id >= 0:
            raise bad_request("a group has a negative id")
        is_forum = True if group.is_forum else None
        self._state.chats[group.id] = Chat(group.id, group.kind, group.title, group.username, is_forum=is_forum)

    def upgrade(self, upgraded: wire.GroupUpgrade) -> None:
        state, old = self._state, self._state.chat(upgraded.chat)
        if old.type != "group" or upgraded.to >= 0 or upgraded.to in state.chats:
            raise bad_request("a group becomes a supergroup once, under a negative id that is free")
        new = replace(old, id=upgraded.to, type="supergroup")
        state.chats[new.id], state.moved[old.id] = new, new.id
        user = state.user(upgraded.user)
        for message in (
            replace(state.new_message(old, None, None), from_=user, migrate_to_chat_id=new.id),
            replace(state.new_message(new, None, None), from_=user, migrate_from_chat_id=old.id),
        ):
            state.store(message := replace(message, message_id=state.new_message_id(message.chat)))
            state.updates.post(message=message)

    def send_raw(self, odd: wire.RawMessage) -> int | None:
        return self._state.updates.post(message=odd.message)

    def open_topic(self, topic: wire.Topic) -> wire.PostedUpdate:
        chat = self._state.chat(topic.chat)
        if not chat.is_forum:
            raise bad_request("the group has no topics: make it with is_forum")
        message = replace(new_topic(self._state, chat, topic.name), from_=self._state.user(topic.user))
        self._state.store(message)
        return wire.PostedUpdate(message.message_id, self._state.updates.post(message=message))

    def say(self, said: wire.UserMessage) -> wire.PostedUpdate:
        state = self._state
        user = state.user(said.user)
        chat = state.private_chat(said.user) if said.chat in (None, said.user) else state.chat(said.chat)
        if chat.id in state.moved:
            raise bad_request(f"the group is a supergroup now: write in {state.moved[chat.id]}")
        message = replace(state.new_message(chat, said.thread, said.reply_to), from_=user)
        message = self._filled(message, said)
        message = state.store(replace(message, message_id=state.new_message_id(chat)))
        if chat.id == said.user:
            # A user who writes to a bot unblocks it.
            state.blocked.discard(chat.id)
        state.log("said", message)
        is_received = chat.id not in state.blocked and self._is_received(message)
        return wire.PostedUpdate(message.message_id, state.updates.post(message=message) if is_received else None)

    def edit(self, edit: wire.UserEdit) -> wire.PostedUpdate:
        before = self._message(edit.chat, edit.message_id)
        if before.from_ is None or before.from_.id != edit.user:
            raise bad_request("people edit their own messages only")
        text, entities = format_text(edit.text)
        after = replace(before, edit_date=int(time.time()))
        if before.text is None:
            after = replace(after, caption=text, caption_entities=entities)
        else:
            after = replace(after, text=text, entities=entities)
        self._state.store(after)
        self._state.log("corrected", after)
        is_received = self._is_received(after)
        return wire.PostedUpdate(
            after.message_id, self._state.updates.post(edited_message=after) if is_received else None
        )

    def press(self, pressed: wire.ButtonPress) -> wire.PostedUpdate:
        state, message = self._state, self._message(pressed.chat, pressed.message_id)
        button = _button(message, pressed.button)
        user = state.user(pressed.user)
        query = CallbackQuery(
            state.new_query_id(), user, str(abs(message.chat.id) * 7919), message, button.callback_data
        )
        state.queries[query.id] = query
        state.log("pressed", message, button.text, user)
        return wire.PostedUpdate(message.message_id, state.updates.post(callback_query=query), query.id)

    def block(self, blocked: wire.BotBlock) -> None:
        state, chat = self._state, self._state.chat(blocked.chat)
        was = chat.id in state.blocked
        if was == blocked.is_blocked:
            return
        state.blocked ^= {chat.id}
        standing = ChatMember("member", state.bot), ChatMember("kicked", state.bot, 0)
        old, new = standing if blocked.is_blocked else reversed(standing)
        who = state.user(abs(chat.id))
        state.updates.post(my_chat_member=ChatMemberUpdated(chat, who, int(time.time()), old, new))

    def _message(self, chat: int, message_id: int) -> Message:
        message = self._state.messages[chat].get(message_id)
        if message is None:
            raise bad_request(f"there is no message {message_id} in chat {chat}")
        return message

    def _filled(self, message: Message, said: wire.UserMessage) -> Message:
        text, entities = format_text(said.text, said.parse_mode)
        if said.file is None:
            if not text or utf16_len(text) > 4096:
                raise bad_request("people write between 1 and 4096 characters at once")
            return replace(message, text=text, entities=entities)
        message = replace(message, caption=text or None, caption_entities=entities)
        files, file = self._state.files, said.file
        match file.kind:
            case "photo":
                return replace(message, photo=files.photo(file.content))
            case "voice":
                return replace(message, voice=files.voice(file.content, file.duration_s, file.mime))
            case "document":
                return replace(message, document=files.document(file.content, file.name, file.mime))

    def _is_received(self, message: Message) -> bool:
        """Return True if the bot receives the message. In privacy mode, group messages must be addressed to it."""
        bot = self._state.bot
        if message.chat.type == "private" or bot.can_read_all_group_messages:
            return True
        answered = message.reply_to_message
        if answered is not None and answered.from_ is not None and answered.from_.id == bot.id:
            return True
        name = f"@{bot.username}".lower()
        for entity in message.marks:
            words = utf16_slice(message.words, entity.offset, entity.length).lower()
            if entity.type == "bot_command" and ("@" not in words or words.endswith(name)):
                return True
            if entity.type == "mention" and words == name:
                return True
        return False


def _button(message: Message, wanted: str) -> InlineKeyboardButton:
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    buttons = [button for row in rows for button in row if button.callback_data is not None]
    for button in buttons:
        if wanted in (button.text, button.callback_data):
            return button
    raise bad_request(f"there is no button {wanted!r} to press: {[button.text for button in buttons]}")
