"""Telegram's answers to the edit that looks for a message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from telegram.error import BadRequest

from everthread.adapters.platforms.telegram.delivery_check import TelegramFinder
from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.sender import ChatSender
from everthread.ports.platform import Address, Outbound

CHAT = Address("7")
TEXT = "Bad Request: there is no caption in the message to edit"


def finder(answers: dict[int, str], otherwise: str) -> TelegramFinder:
    """Create a finder for a bot that answers an edit by the message id."""

    async def edit_message_caption(chat: int, message_id: int, **more: Any) -> None:
        raise BadRequest(answers.get(message_id, otherwise))

    async def get_webhook_info() -> Any:
        return SimpleNamespace(pending_update_count=0)

    bot = cast(Any, SimpleNamespace(edit_message_caption=edit_message_caption, get_webhook_info=get_webhook_info))
    return TelegramFinder(bot, ChatSender(), ErrorTranslator("token", 1.0), lambda message: False)


@pytest.mark.parametrize("missing", ["Bad Request: message to edit not found", "Bad Request: MESSAGE_ID_INVALID"])
async def test_an_id_without_a_message_is_skipped(missing: str) -> None:
    bot = finder({9: TEXT}, missing)
    bot.know(CHAT, "5")
    mark = bot.newest(CHAT)
    assert await bot.find(Outbound("m", CHAT, "hello"), mark) == "9"
    assert await bot.find(Outbound("m", CHAT, "hello"), mark, besides=("9",)) is None
