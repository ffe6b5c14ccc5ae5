"""State of the emulated Telegram: users, chats, messages and the message log."""

from __future__ import annotations

import re
import time
from collections import defaultdict

from msgspec.structs import replace

from everthread.testing.telegram.errors import bad_request, chat_moved, forbidden
from everthread.testing.telegram.files import Files
from everthread.testing.telegram.objects import BotCommand, CallbackQuery, Chat, Message, User
from everthread.testing.telegram.protocol import ChatEvent, ChatEventKind
from everthread.testing.telegram.updates import ChangeSignal, Updates

_NUMBER = re.compile(r"-?\d{1,18}")


class TelegramState:
    def __init__(self, bot: User) -> None:
        self.bot = bot
        self.changes = ChangeSignal()
        self.updates = Updates(self.changes)
        self.files = Files()
        self.users: dict[int, User] = {}
        self.chats: dict[int, Chat] = {}
        self.messages: dict[int, dict[int, Message]] = defaultdict(dict)
        """Current messages of each chat."""
        self.moved: dict[int, int] = {}
        """Groups upgraded to supergroups, by old id."""
        self.blocked: set[int] = set()
        """Chats that have blocked the bot."""
        self.queries: dict[str, CallbackQuery] = {}
        """Callback queries that are not answered yet."""
        self.commands: dict[str, tuple[BotCommand, ...]] = {}
        self.events: list[ChatEvent] = []
        self._last_id: dict[int, int] = defaultdict(int)
        self._pressed = 0

    # --- Users and chats ---------------------------------------------------------------------------------------------

    def user(self, user_id: int) -> User:
        """Look up a user. An unknown user is named after their id."""
        if user_id not in self.users:
            self.users[user_id] = User(user_id, False, f"User {user_id}", f"user_{user_id}", "en")
        return self.users[user_id]

    def private_chat(self, user_id: int) -> Chat:
        user = self.user(user_id)
        chat = Chat(user.id, "private", username=user.username, first_name=user.first_name)
        return self.chats.setdefault(user.id, chat)

    def chat(self, chat_id: str | int) -> Chat:
        """Look up a chat by its id or public name."""
        name = str(chat_id)
        if not name:
            raise bad_request("chat_id is empty")
        if name.startswith("@"):
            named = (chat for chat in self.chats.values() if chat.id < 0 and f"@{chat.username}" == name)
            found = next(named, None)
        else:
            found = self.chats.get(int(name)) if _NUMBER.fullmatch(name) else None
        if found is None:
            raise bad_request("chat not found")
        return found

    def writable_chat(self, chat_id: str | int) -> Chat:
        if _NUMBER.fullmatch(str(chat_id)) and self._is_unreachable(int(chat_id)):
            raise forbidden("bot can't initiate conversation with a user")
        chat = self.chat(chat_id)
        if chat.id in self.moved:
            raise chat_moved(self.moved[chat.id])
        if chat.id in self.blocked:
            where = f"kicked from the {chat.type} chat" if chat.id < 0 else "blocked by the user"
            raise forbidden(f"bot was {where}")
        return chat

    def _is_unreachable(self, user_id: int) -> bool:
        """Return True for a known user who has never written to the bot."""
        return user_id in self.users and user_id not in self.chats

    # --- Messages ----------------------------------------------------------------------------------------------------

    def new_message_id(self, chat: Chat) -> int:
        """Next message id. Each supergroup has its own sequence; all other chats share one."""
        counted = chat.id if chat.type in ("supergroup", "channel") else 0
        self._last_id[counted] += 1
        return self._last_id[counted]

    def store(self, message: Message) -> Message:
        self.messages[message.chat.id][message.message_id] = message
        return message

    def new_message(self, chat: Chat, thread: int | None, reply_to: int | None) -> Message:
        """Create an empty message with its chat, topic and reply reference."""
        there = self.messages[chat.id]
        answered = there.get(reply_to) if reply_to else None
        topic = there.get(thread) if thread else None
        if chat.is_forum:
            if answered is not None and answered.is_topic_message and topic is None:
                thread = answered.message_thread_id
                topic = there.get(thread or 0)
            if thread and (topic is None or topic.forum_topic_created is None):
                raise bad_request("message thread not found")
            # A message in a topic that replies to nothing replies to the message that opened the topic.
            answered = answered or topic
        elif thread and (topic is None or chat.type != "supergroup"):
            raise bad_request("message thread not found")
        elif answered is not None and chat.type == "supergroup":
            # Replies in a supergroup form threads, which are not topics.
            thread = answered.message_thread_id or answered.message_id
        return Message(
            message_id=0,
            chat=chat,
            date=int(time.time()),
            message_thread_id=thread or None,
            is_topic_message=True if chat.is_forum and thread else None,
            reply_to_message=answered and replace(answered, reply_to_message=None, reply_markup=None),
        )

    def new_query_id(self) -> str:
        self._pressed += 1
        return str(4_000_000_000 + self._pressed)

    # --- Message log -------------------------------------------------------------------------------------------------

    def log(self, what: ChatEventKind, message: Message, text: str | None = None, user: User | None = None) -> None:
        sender = user or message.from_
        thread = message.message_thread_id if message.is_topic_message else None
        event = ChatEvent(
            len(self.events),
            time.time(),
            what,
            message.chat.id,
            message.message_id,
            message.words if text is None else text,
            thread,
            sender.id if sender else 0,
        )
        self.events.append(event)
        self.changes.notify()
