"""Control client for tests of the loopback platform: users, faults and the message log."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.testing.control_client import ControlClient
from everthread.testing.loopback import protocol as wire


class LoopbackUsers(ControlClient[wire.ChatEvent]):
    """Send messages as users and read the message log."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url, "admin", wire.ChatEvent)

    async def say(self, chat: str, text: str) -> str:
        """Send a message in a direct chat. Return the update's id."""
        return (await self.say_all([(chat, text)]))[0]

    async def say_all(self, said: Sequence[tuple[str, str]]) -> list[str]:
        """Send many messages in one call, given as pairs of chat and text."""
        all_said = [wire.UserMessage(chat, f"user-{chat}", text) for chat, text in said]
        return [posted.update_id for posted in await self._call("say", all_said, list[wire.PostedUpdate])]

    async def press(self, chat: str, label: str, user: str = "") -> str:
        """Press the button with this label under the newest message that has one. Return the update's id."""
        await self.refresh()
        commands = [command for one in self._current_messages(chat) for shown, command in one.buttons if shown == label]
        if not commands:
            raise AssertionError(f"there is no button {label!r} in chat {chat}; last log entries: {self.log[-5:]}")
        pressed = [wire.UserMessage(chat, user or f"user-{chat}", commands[-1])]
        return (await self._call("say", pressed, list[wire.PostedUpdate]))[0].update_id

    async def redeliver(self, update_id: str) -> None:
        await self._call("redeliver", update_id, wire.PostedUpdate)

    async def fault(self, fault: wire.Fault) -> None:
        await self._call("fault", fault, None)

    async def heal(self) -> None:
        await self._call("heal", None, None)

    async def dump(self) -> wire.ServerState:
        return await self._call("dump", None, wire.ServerState)

    def chats(self) -> list[str]:
        return list(dict.fromkeys(one.chat for one in self.log))

    def answers(self, chat: str) -> list[wire.ChatEvent]:
        """Messages of the agent in a chat, in their original wording."""
        return [one for one in self.log if one.what == "sent" and one.chat == chat]

    def texts(self, chat: str) -> list[str]:
        """Texts of the agent in a chat, with edits applied."""
        return [one.text for one in self._current_messages(chat)]

    def _current_messages(self, chat: str) -> list[wire.ChatEvent]:
        now = {one.message_id: one for one in self.log if one.chat == chat and one.what != "said"}
        return list(now.values())
