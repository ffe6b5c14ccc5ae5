"""Fake platform in the test's own process: delivers messages of users and records messages of the agent.

It is as strict as real platforms: it refuses texts that are too long, redelivers rejected updates, and fails on demand.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from everthread.domain.errors import PlatformRefused, PlatformUnavailable
from everthread.domain.model import ChatType
from everthread.ports.platform import Address, Button, Capabilities, Finder, Media, Outbound, Take, Update

Fault = Callable[[], Exception | None]


class FakePlatform:
    def __init__(self, name: str = "fake", **capabilities: object) -> None:
        self.name = name
        self.capabilities = Capabilities(**{"text_chars_max": 4000, **capabilities})  # type: ignore[arg-type]
        self.finder: Finder | None = None
        self.sent: list[Outbound] = []
        self.shown: dict[str, str] = {}
        """Messages by id, with edits applied."""
        self.edits: list[tuple[str, str]] = []
        self.typing = 0
        self.files: dict[str, bytes] = {}
        """Attachments of messages, by handle."""
        self.faults: deque[Exception] = deque()
        """Exceptions raised by the next sends."""
        self.taken: list[str] = []
        self._updates: deque[Update] = deque()
        self._news = asyncio.Event()
        self._count = 0

    def say(
        self,
        text: str,
        *,
        chat: str = "42",
        user: str = "",
        chat_type: ChatType = ChatType.DM,
        thread: str | None = None,
        update_id: str = "",
    ) -> Update:
        self._count += 1
        user = user or chat
        update = Update(
            self.name, "bot", update_id or str(self._count), chat, chat_type, user, text, thread, user_name=user.title()
        )
        self.deliver(update)
        return update

    def deliver(self, update: Update) -> None:
        self._updates.append(update)
        self._news.set()

    def texts(self, chat: str = "42") -> list[str]:
        """Messages of the agent in a chat, as a user sees them."""
        return [self.shown[str(number)] for number, out in enumerate(self.sent) if out.to.chat == chat]

    def press(self, label: str, *, chat: str = "42", user: str = "", chat_type: ChatType = ChatType.DM) -> Update:
        """Press the button with this label under the newest message that had one."""
        commands = [b.command for out in self.sent if out.to.chat == chat for b in out.buttons if b.label == label]
        return self.say(commands[-1], chat=chat, user=user, chat_type=chat_type)

    async def run(self, take: Take) -> None:
        while True:
            while self._updates:
                await take(self._updates[0])
                self.taken.append(self._updates.popleft().update_id)
            self._news.clear()
            await self._news.wait()

    async def send(self, message: Outbound) -> str:
        if self.faults:
            raise self.faults.popleft()
        if len(message.text) > self.capabilities.text_chars_max or not message.text.strip():
            raise PlatformRefused("too long, or empty")
        await asyncio.sleep(0)
        if self.capabilities.idempotent_send:
            for number, known in enumerate(self.sent):
                if known.id == message.id:
                    return str(number)
        self.sent.append(message)
        self.shown[str(len(self.sent) - 1)] = message.text
        return str(len(self.sent) - 1)

    async def edit(self, to: Address, message_id: str, text: str, buttons: tuple[Button, ...] = ()) -> None:
        if not self.capabilities.edits:
            raise PlatformRefused("nothing can be edited here")
        if message_id not in self.shown:
            raise PlatformRefused("no such message")
        self.edits.append((message_id, text))
        self.shown[message_id] = text

    async def show_typing(self, to: Address) -> None:
        self.typing += 1
        if not self.capabilities.typing:
            raise PlatformUnavailable("no such thing")

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        if self.faults:
            raise self.faults.popleft()
        if media.handle not in self.files or len(self.files[media.handle]) > bytes_max:
            raise PlatformRefused("it is gone, or too large")
        return self.files[media.handle]

    async def aclose(self) -> None:
        pass
