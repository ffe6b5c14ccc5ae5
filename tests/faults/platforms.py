"""Users of the emulated Telegram, with the same interface as those of the loopback platform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from everthread.testing.loopback import protocol as wire
from everthread.testing.loopback.users import LoopbackUsers
from everthread.testing.telegram import protocol as telegram_wire
from everthread.testing.telegram import users as telegram_people

FIRST_PERSON = 1000
CALLS = {"poll": "getUpdates", "send": "sendMessage", "edit": "editMessageText", "typing": "sendChatAction", None: None}


class OnLoopback(LoopbackUsers):
    async def waiting(self) -> int:
        """Number of unacknowledged updates."""
        return (await self.dump()).waiting

    def chat_of(self, key: str) -> str:
        """Chat id in session keys of the chat with this name."""
        return key.rpartition(":")[2]


class OnTelegram(OnLoopback):
    """Users on Telegram. Chats have names, as on the loopback platform; their numeric ids are internal."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self._telegram = telegram_people.TelegramUsers(base_url)
        self._names: list[str] = []
        self._deleted: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._telegram.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._telegram.__aexit__()
        await super().__aexit__()

    async def say_all(self, said: Sequence[tuple[str, str]]) -> list[str]:
        posted = await self._telegram.say_all(
            [telegram_wire.UserMessage(self._number(chat), text) for chat, text in said]
        )
        return [str(one.update_id) for one in posted]

    async def send_file(self, chat: str, caption: str, content: bytes, name: str) -> str:
        said = telegram_wire.AttachedFile("document", content, name, "application/octet-stream")
        return str((await self._telegram.say(self._number(chat), caption, file=said)).update_id)

    async def delay_next_file(self, seconds: float) -> None:
        """Delay the next download of a file."""
        await self._telegram.fault(telegram_wire.Fault("delay", "getFile", seconds=seconds))

    async def refresh(self, timeout_s: float = 0.0) -> None:
        known = len(self._telegram.log)
        await self._telegram.refresh(timeout_s)
        for one in self._telegram.log[known:]:
            if one.what in ("said", "sent", "edited"):
                chat, message_id = self._names[one.chat - FIRST_PERSON], str(one.message_id)
                self.log.append(wire.ChatEvent(one.number, one.at, one.what, chat, one.text, message_id))
            elif one.what == "deleted":
                self._deleted.add((self._names[one.chat - FIRST_PERSON], str(one.message_id)))

    def _current_messages(self, chat: str) -> list[wire.ChatEvent]:
        return [one for one in super()._current_messages(chat) if (chat, one.message_id) not in self._deleted]

    async def redeliver(self, update_id: str) -> None:
        await self._telegram.redeliver(int(update_id))

    async def fault(self, fault: wire.Fault) -> None:
        chat = self._number(fault.chat) if fault.chat is not None else None
        await self._telegram.fault(telegram_wire.Fault(fault.kind, CALLS[fault.call], fault.times, fault.seconds, chat))

    async def heal(self) -> None:
        await self._telegram.heal()

    async def waiting(self) -> int:
        state = await self._telegram.dump()
        return len(state.pending) + len(state.repeated)

    def chat_of(self, key: str) -> str:
        return self._names[int(super().chat_of(key)) - FIRST_PERSON]

    def _number(self, chat: str) -> int:
        if chat not in self._names:
            self._names.append(chat)
        return FIRST_PERSON + self._names.index(chat)
