"""Asking Telegram for what came in. An update is acknowledged by the next question, and only after it was taken."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

import telegram

from everthread.adapters.platforms.telegram.failures import Failures
from everthread.adapters.platforms.telegram.updates import WANTED

POLL_S = 25
BATCH_MAX = 100

Taker = Callable[[telegram.Update], Awaitable[None]]
"""Comes back once an update is stored, or is of no concern."""


async def poll(bot: telegram.Bot, failures: Failures, take: Taker) -> None:
    """Hand over what comes in, until cancelled. What waits already comes first: nothing is dropped."""
    with failures.told():
        await bot.delete_webhook(drop_pending_updates=False)
    offset: int | None = None
    while True:
        with failures.told():
            updates = await bot.get_updates(
                offset, BATCH_MAX, POLL_S, allowed_updates=WANTED, read_timeout=failures.call_s + POLL_S
            )
        await handed_over(updates, take)
        # What was taken is acknowledged by one question. The next names no number any more: after a quiet week
        # Telegram begins with another one, which may be lower.
        offset = max((update.update_id for update in updates), default=-1) + 1 or None


async def handed_over(updates: Sequence[telegram.Update], take: Taker) -> None:
    """Each chat's in order, the chats side by side: one that has to wait holds up nobody else of the same answer."""
    chats: defaultdict[int, list[telegram.Update]] = defaultdict(list)
    # A connection that broke off can have them come twice, and in any order.
    for _, update in sorted({update.update_id: update for update in updates}.items()):
        chats[update.effective_chat.id if update.effective_chat is not None else 0].append(update)

    async def one_chat(updates: list[telegram.Update]) -> None:
        for update in updates:
            await take(update)

    try:
        async with asyncio.TaskGroup() as tasks:
            for of_a_chat in chats.values():
                tasks.create_task(one_chat(of_a_chat))
    except ExceptionGroup as group:
        # What could not be stored is not acknowledged: it comes again.
        raise group.exceptions[0] from None
