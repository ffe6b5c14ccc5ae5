"""The people on the emulated Telegram, and whoever breaks it: what a test does from outside."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from everthread.testing.control_client import Bystander
from everthread.testing.telegram import protocol as wire


class People(Bystander[wire.Seen]):
    """Says things, presses buttons, and sees what everybody sees. Chats and people are named by their numbers: a person
    writes to the bot in the chat that has the person's number, and groups are below zero.
    """

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url, "control", wire.Seen)

    # --- What people do ----------------------------------------------------------------------------------------------

    async def introduce(self, user: int, first_name: str, username: str | None = None) -> None:
        """Who is not introduced is called after their number."""
        await self._call("introduce", wire.Person(user, first_name, username, "en"), None)

    async def group(self, group: wire.Group) -> int:
        await self._call("group", group, None)
        return group.id

    async def upgrade(self, user: int, chat: int, to: int) -> None:
        """A group becomes a supergroup, under another number."""
        await self._call("upgrade", wire.Upgraded(chat, to, user), None)

    async def open_topic(self, user: int, chat: int, name: str) -> int:
        """The topic's number."""
        return (await self._call("topic", wire.Topic(chat, user, name), wire.Posted)).message_id

    async def say(
        self,
        user: int,
        text: str = "",
        *,
        chat: int | None = None,
        thread: int | None = None,
        reply_to: int | None = None,
        file: wire.Attached | None = None,
    ) -> wire.Posted:
        """To the bot, or in a group; with a file, the text is its caption."""
        said = wire.Said(user, text, chat, thread, reply_to, None, file)
        return (await self.say_all([said]))[0]

    async def say_all(self, said: Sequence[wire.Said]) -> list[wire.Posted]:
        return await self._call("say", said, list[wire.Posted])

    async def correct(self, user: int, chat: int, message_id: int, text: str) -> wire.Posted:
        return await self._call("correct", wire.Corrected(user, chat, message_id, text), wire.Posted)

    async def press(self, user: int, chat: int, message_id: int, button: str) -> wire.Posted:
        """The button is known by what it shows or by what it carries."""
        return await self._call("press", wire.Pressed(user, chat, message_id, button), wire.Posted)

    async def block(self, chat: int, is_blocked: bool = True) -> None:
        await self._call("block", wire.Blocked(chat, is_blocked), None)

    # --- What goes wrong ---------------------------------------------------------------------------------------------

    async def redeliver(self, update_id: int) -> None:
        """The update comes once more, under the same number, also if it was confirmed."""
        await self._call("redeliver", update_id, None)

    async def odd(self, message: bytes) -> int | None:
        """A message comes that no library can read: this JSON, as it is. Its update's number."""
        return await self._call("odd", wire.Odd(Raw(message)), int | None)

    async def fault(self, fault: wire.Fault) -> None:
        await self._call("fault", fault, None)

    async def cut(self, seconds: float) -> None:
        """For so long, nothing gets through to or from the bot; what is under way breaks."""
        await self._call("cut", seconds, None)

    async def heal(self) -> None:
        await self._call("heal", None, None)

    async def limits(self, is_on: bool) -> None:
        """Whether the bot is told to slow down. What it has sent so far no longer counts."""
        await self._call("limits", is_on, None)

    # --- What is seen ------------------------------------------------------------------------------------------------

    def texts(self, chat: int, thread: int | None = None) -> list[str]:
        """What the bot has sent there and not deleted, each as it reads now."""
        now: dict[int, str] = {}
        for one in self.seen:
            if one.chat == chat and thread in (None, one.thread):
                if one.what in ("sent", "edited"):
                    now[one.message_id] = one.text
                elif one.what == "deleted":
                    now.pop(one.message_id, None)
        return list(now.values())

    def sent(self, chat: int) -> list[wire.Seen]:
        """What the bot has sent there, each as it was first."""
        return [one for one in self.seen if one.what == "sent" and one.chat == chat]

    async def messages(self, chat: int, thread: int | None = None) -> list[wire.Shown]:
        """What stands there now, people's messages and the bot's."""
        return await self._call("messages", wire.Place(chat, thread), list[wire.Shown])

    async def screen(self, chat: int, thread: int | None = None) -> str:
        """The conversation as text: the same for the same conversation, so that it can be kept as a snapshot."""
        return await self._call("screen", wire.Place(chat, thread), str)

    async def file(self, file_id: str) -> bytes:
        """What is in a file that somebody sent."""
        return await self._call("file", file_id, bytes)

    async def dump(self) -> wire.Dump:
        return await self._call("dump", None, wire.Dump)
