"""Control client for tests of the emulated Telegram: users, faults and the message log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from everthread.testing.control_client import ControlClient
from everthread.testing.telegram import protocol as wire


class TelegramUsers(ControlClient[wire.ChatEvent]):
    """Act as users and read the message log. Chats and users are identified by their ids: the direct chat with the bot
    has the user's id, and ids of groups are negative.
    """

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url, "control", wire.ChatEvent)

    # --- Actions of users --------------------------------------------------------------------------------------------

    async def introduce(self, user: int, first_name: str, username: str | None = None) -> None:
        """Name a user. Without this, a user is named after their id."""
        await self._call("introduce", wire.UserProfile(user, first_name, username, "en"), None)

    async def group(self, group: wire.Group) -> int:
        await self._call("group", group, None)
        return group.id

    async def upgrade(self, user: int, chat: int, to: int) -> None:
        """Upgrade a group to a supergroup with another id."""
        await self._call("upgrade", wire.GroupUpgrade(chat, to, user), None)

    async def open_topic(self, user: int, chat: int, name: str) -> int:
        """Open a topic. Return its id."""
        return (await self._call("topic", wire.Topic(chat, user, name), wire.PostedUpdate)).message_id

    async def say(
        self,
        user: int,
        text: str = "",
        *,
        chat: int | None = None,
        thread: int | None = None,
        reply_to: int | None = None,
        file: wire.AttachedFile | None = None,
    ) -> wire.PostedUpdate:
        """Send a message to the bot or in a group. With a file, the text is its caption."""
        said = wire.UserMessage(user, text, chat, thread, reply_to, None, file)
        return (await self.say_all([said]))[0]

    async def say_all(self, said: Sequence[wire.UserMessage]) -> list[wire.PostedUpdate]:
        return await self._call("say", said, list[wire.PostedUpdate])

    async def correct(self, user: int, chat: int, message_id: int, text: str) -> wire.PostedUpdate:
        return await self._call("correct", wire.UserEdit(user, chat, message_id, text), wire.PostedUpdate)

    async def press(self, user: int, chat: int, message_id: int, button: str) -> wire.PostedUpdate:
        """Press a button, identified by its label or its data."""
        return await self._call("press", wire.ButtonPress(user, chat, message_id, button), wire.PostedUpdate)

    async def block(self, chat: int, is_blocked: bool = True) -> None:
        await self._call("block", wire.BotBlock(chat, is_blocked), None)

    # --- Faults ------------------------------------------------------------------------------------------------------

    async def redeliver(self, update_id: int) -> None:
        """Deliver an update again under the same id, even if it was confirmed."""
        await self._call("redeliver", update_id, None)

    async def odd(self, message: bytes) -> int | None:
        """Deliver a message that no library can parse, as this raw JSON. Return the update's id."""
        return await self._call("odd", wire.RawMessage(Raw(message)), int | None)

    async def fault(self, fault: wire.Fault) -> None:
        await self._call("fault", fault, None)

    async def cut(self, seconds: float) -> None:
        """Block the bot's traffic for some seconds and close its open connections."""
        await self._call("cut", seconds, None)

    async def heal(self) -> None:
        await self._call("heal", None, None)

    async def limits(self, is_on: bool) -> None:
        """Turn rate limits on or off, and reset their counters."""
        await self._call("limits", is_on, None)

    # --- Message log -------------------------------------------------------------------------------------------------

    def texts(self, chat: int, thread: int | None = None) -> list[str]:
        """Texts of the bot in a chat, with edits applied and deletions removed."""
        now: dict[int, str] = {}
        for one in self.log:
            if one.chat == chat and thread in (None, one.thread):
                if one.what in ("sent", "edited"):
                    now[one.message_id] = one.text
                elif one.what == "deleted":
                    now.pop(one.message_id, None)
        return list(now.values())

    def sent(self, chat: int) -> list[wire.ChatEvent]:
        """Messages of the bot in a chat, in their original wording."""
        return [one for one in self.log if one.what == "sent" and one.chat == chat]

    async def messages(self, chat: int, thread: int | None = None) -> list[wire.ShownMessage]:
        """Current messages of a chat, by users and by the bot."""
        return await self._call("messages", wire.ChatTopic(chat, thread), list[wire.ShownMessage])

    async def screen(self, chat: int, thread: int | None = None) -> str:
        """Render the chat as deterministic text, fit for snapshots."""
        return await self._call("screen", wire.ChatTopic(chat, thread), str)

    async def file(self, file_id: str) -> bytes:
        """Contents of a sent file."""
        return await self._call("file", file_id, bytes)

    async def dump(self) -> wire.ServerState:
        return await self._call("dump", None, wire.ServerState)
