"""Rate limits, as both bot libraries report them."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

BOB = 8


pytestmark = [
    pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__),
    # python-telegram-bot warns about its own use of a deprecated attribute of its error class.
    pytest.mark.filterwarnings("ignore:.*retry_after.*:telegram.warnings.PTBDeprecationWarning"),
]


async def test_sending_too_fast_is_refused_with_a_retry_delay(library: Library) -> None:
    async with scene(library) as s:
        sent = await s.bot.send_message(ANN, "0")
        for number in range(1, 5):
            await s.bot.edit_message_text(text=str(number), chat_id=ANN, message_id=sent.message_id)
        await refused(s.bot.send_message(ANN, "too fast"), library.busy, "Retry in 1 seconds")
        # Limits apply to each chat separately.
        await s.people.say(BOB, "hello")
        await s.bot.send_message(BOB, "hello")
        await s.people.limits(False)
        for number in range(40):
            await s.bot.send_message(ANN, str(number))
        assert (await s.people.dump()).refused == {"429": 1}
