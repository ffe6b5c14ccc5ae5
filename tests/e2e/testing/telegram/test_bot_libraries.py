"""Whole bots on the emulator, run by their libraries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e.telegram_fixture import ANN, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

both = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def echo(bot: Any, update: Any) -> None:
    if update.message is not None and update.message.text:
        await bot.send_message(update.message.chat.id, f"You said: {update.message.text}")


@both
async def test_a_polling_bot_answers_all_users_and_pending_messages(library: Library) -> None:
    async with scene(library) as s:
        async with library.polling(s.emulator.base_url, s.emulator.token, echo):
            await s.people.until(lambda: s.people.texts(ANN) == ["You said: /start"], "an answer to what waited")
            for user in (8, 9):
                await s.people.say(user, f"I am {user}")
            await s.people.until(lambda: s.people.texts(9) == ["You said: I am 9"], "an answer")
            await s.people.until(lambda: s.people.texts(8) == ["You said: I am 8"], "an answer")
        assert (await s.people.dump()).pending == ()


@both
async def test_a_polling_bot_survives_a_network_cut(library: Library) -> None:
    async with scene(library) as s, library.polling(s.emulator.base_url, s.emulator.token, echo):
        await s.people.until(lambda: len(s.people.texts(ANN)) == 1, "an answer before the cut")
        await s.people.cut(0.5)
        await s.people.say(ANN, "still there?")
        await s.people.until(lambda: "You said: still there?" in s.people.texts(ANN), "an answer after the cut")
