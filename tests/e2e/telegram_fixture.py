"""A bot of either library on an emulated Telegram, and the user Ann, who has written to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.e2e.telegram_libraries import Library

from everthread.testing.telegram.server import TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

ANN = 7


@dataclass
class Scene:
    bot: Any
    people: TelegramUsers
    emulator: TelegramEmulator


@asynccontextmanager
async def scene(library: Library, **options: Any) -> AsyncIterator[Scene]:
    """Yield a bot and the user Ann, who has written to it."""
    async with TelegramEmulator(**options) as emulator, TelegramUsers(emulator.base_url) as people:
        await people.introduce(ANN, "Ann", "ann_example")
        async with library.bot(emulator.base_url, emulator.token) as bot:
            await people.say(ANN, "/start")
            yield Scene(bot, people, emulator)


async def refused(call: Any, error: type[Exception], words: str) -> Exception:
    with pytest.raises(error) as caught:
        await call
    assert words.lower() in str(caught.value).lower(), str(caught.value)
    return caught.value
