"""Text rendering of a chat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.e2e.telegram_fixture import ANN, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

both = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


@both
async def test_a_conversation_is_drawn_as_users_see_it(library: Library) -> None:
    async def butler(bot: Any, update: Any) -> None:
        if update.callback_query is not None:
            query = update.callback_query
            await bot.answer_callback_query(query.id, text="Done.")
            await bot.edit_message_text(
                text="*Done*\\.", chat_id=ANN, message_id=query.message.message_id, parse_mode="MarkdownV2"
            )
        elif update.message.text == "/start":
            await bot.send_message(ANN, "Good day\\. _At your service_\\.", parse_mode="MarkdownV2")
        else:
            await bot.send_message(
                ANN,
                "Shall I write this down?\n```python\nprint('你好')\n```\n>as you said it\n>just now",
                parse_mode="MarkdownV2",
                reply_parameters=library.reply(update.message.message_id),
                reply_markup=library.buttons([("Yes", "yes"), ("No", "no")]),
            )

    async with scene(library) as s, library.polling(s.emulator.base_url, s.emulator.token, butler):
        await s.people.until(lambda: len(s.people.texts(ANN)) == 1, "a greeting")
        await s.people.say(
            ANN, "Remember the milk, please, and everything else that one needs for a breakfast of kings."
        )
        await s.people.until(lambda: len(s.people.texts(ANN)) == 2, "a question")
        asked = await s.people.screen(ANN)
        await s.people.press(ANN, ANN, s.people.sent(ANN)[1].message_id, "Yes")
        await s.people.until(lambda: s.people.texts(ANN)[1] == "Done.", "an end")
        snapshots = Path(__file__).parents[3] / "screens" / "telegram"
        assert asked == (snapshots / "question.txt").read_text()
        assert await s.people.screen(ANN) == (snapshots / "answered.txt").read_text()
