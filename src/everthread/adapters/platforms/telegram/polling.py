"""Asking Telegram for what came in. An update is acknowledged by the next question, and only after it was taken."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import telegram

from everthread.adapters.platforms.telegram.errors import Failures
from everthread.adapters.platforms.telegram.http import Transport
from everthread.adapters.platforms.telegram.updates import WANTED, Unread, read

POLL_S = 25
BATCH_MAX = 100

Taker = Callable[[telegram.Update | Unread], Awaitable[None]]
"""Comes back once an update is stored, or is of no concern."""


async def poll(bot: telegram.Bot, transport: Transport, failures: Failures, take: Taker) -> None:
    """Hand over what comes in, until cancelled. What waits already comes first: nothing is dropped."""
    with failures.told():
        await bot.delete_webhook(drop_pending_updates=False)
    offset: int | None = None
    while True:
        with failures.told():
            asked: dict[str, Any] = {"limit": BATCH_MAX, "timeout": POLL_S, "allowed_updates": WANTED}
            if offset is not None:
                asked["offset"] = offset
            updates = await transport.updates(f"{bot.base_url}/getUpdates", asked, failures.call_s + POLL_S)
        await handed_over([read(update, bot) for update in updates], take)
        # What was taken is acknowledged by one question. The next names no number any more: after a quiet week
        # Telegram begins with another one, which may be lower.
        offset = max((update["update_id"] for update in updates), default=-1) + 1 or None


async def handed_over(updates: Sequence[telegram.Update | Unread], take: Taker) -> None:
    """Each chat's in order, the chats side by side: one that has to wait holds up nobody else of the same answer."""
    chats: defaultdict[int, list[telegram.Update | Unread]] = defaultdict(list)
    moved = _moved(updates)
    # A connection that broke off can have them come twice, and in any order.
    for _, update in sorted({update.update_id: update for update in updates}.items()):
        chats[moved.get(chat := _chat(update), chat)].append(update)

    async def one_chat(updates: list[telegram.Update | Unread]) -> None:
        for update in updates:
            await take(update)

    try:
        async with asyncio.TaskGroup() as tasks:
            for of_a_chat in chats.values():
                tasks.create_task(one_chat(of_a_chat))
    except ExceptionGroup as group:
        # What could not be stored is not acknowledged: it comes again.
        raise group.exceptions[0] from None


def _chat(update: telegram.Update | Unread) -> int:
    if isinstance(update, Unread) or update.effective_chat is None:
        return 0
    return update.effective_chat.id


def _moved(updates: Sequence[telegram.Update | Unread]) -> dict[int, int]:
    """Chats that were others before: what was said in these comes first."""
    said = [update.message for update in updates if isinstance(update, telegram.Update) and update.message is not None]
    return {one.chat.id: one.migrate_from_chat_id for one in said if one.migrate_from_chat_id is not None}
