"""Chats that move, and sends in progress."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from telegram.error import BadRequest, ChatMigrated

from everthread.adapters.platforms.telegram.sender import ChatSender, with_markdown
from everthread.domain.errors import PlatformRefused
from everthread.ports.platform import Address


async def test_a_call_to_a_chat_that_has_moved_is_repeated_at_its_new_id() -> None:
    chats, called = ChatSender(), list[int]()

    async def call(chat: int) -> str:
        called.append(chat)
        if chat == -5:
            raise ChatMigrated(-1005)
        return "done"

    assert await chats.call(Address("-5"), call) == "done"
    assert await chats.call(Address("-5"), call) == "done"
    assert called == [-5, -1005, -1005]


async def test_a_send_in_progress_is_waited_for_and_its_id_is_known() -> None:
    chats, may_end = ChatSender(), asyncio.Event()

    async def call(chat: int) -> Any:
        await may_end.wait()
        return SimpleNamespace(message_id=17)

    sending = asyncio.ensure_future(chats.send(Address("7"), call))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(chats.wait_sends(7))
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    assert await sending == "17"
    await waiting
    assert chats.message_ids.is_known(7, 17)


async def test_a_text_that_can_not_be_parsed_is_sent_without_formatting() -> None:
    sent: list[tuple[str, str | None]] = []

    async def call(text: str, parse_mode: str | None) -> None:
        sent.append((text, parse_mode))
        if parse_mode:
            raise BadRequest("Can't parse entities: odd")

    await with_markdown("a *b*", call)
    assert sent[-1] == ("a *b*", None)
    assert len(sent) == 2


async def test_a_chat_without_a_number_is_refused() -> None:
    with pytest.raises(PlatformRefused):
        ChatSender().current_id(Address("somewhere"))
