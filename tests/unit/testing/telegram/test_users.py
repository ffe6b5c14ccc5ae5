"""The users of the emulated Telegram, as tests control them."""

from __future__ import annotations

import aiohttp

from everthread.testing.telegram import protocol as wire
from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

ANN, GROUP = 7, -1001


async def call(emulator: TelegramEmulator, method: str, **params: object) -> int:
    url = f"{emulator.base_url}/bot{emulator.token}/{method}"
    async with aiohttp.ClientSession() as http, http.post(url, json=params) as response:
        body = await response.json()
        assert body["ok"], body
        return body["result"]["message_id"] if isinstance(body["result"], dict) else 0


async def test_texts_have_edits_applied_and_deleted_messages_removed() -> None:
    async with TelegramEmulator() as emulator, TelegramUsers(emulator.base_url) as users:
        await users.say(ANN, "hello")
        first = await call(emulator, "sendMessage", chat_id=ANN, text="hel")
        second = await call(emulator, "sendMessage", chat_id=ANN, text="wrong")
        await call(emulator, "editMessageText", chat_id=ANN, message_id=first, text="hello")
        await call(emulator, "deleteMessage", chat_id=ANN, message_id=second)
        await users.refresh()
        assert users.texts(ANN) == ["hello"]
        assert [one.text for one in users.sent(ANN)] == ["hel", "wrong"]


async def test_texts_of_one_topic_are_told_from_those_of_the_group() -> None:
    async with TelegramEmulator() as emulator, TelegramUsers(emulator.base_url) as users:
        assert await users.group(wire.Group(GROUP, "Garden", is_forum=True)) == GROUP
        roses = await users.open_topic(ANN, GROUP, "Roses")
        await call(emulator, "sendMessage", chat_id=GROUP, text="to roses", message_thread_id=roses)
        await call(emulator, "sendMessage", chat_id=GROUP, text="to all")
        await users.refresh()
        assert (users.texts(GROUP, roses), users.texts(GROUP)) == (["to roses"], ["to roses", "to all"])


async def test_an_introduced_user_has_a_name_and_others_are_named_after_their_id() -> None:
    async with TelegramEmulator() as emulator, TelegramUsers(emulator.base_url) as users:
        await users.introduce(ANN, "Ann")
        await users.say(ANN, "hello")
        await users.say(8, "hello")
        assert [(await users.messages(chat))[0].name for chat in (ANN, 8)] == ["Ann", "User 8"]
