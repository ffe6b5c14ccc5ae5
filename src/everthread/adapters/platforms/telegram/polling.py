"""Receive updates with getUpdates. An update is acknowledged by the next request, after it was handled."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import telegram

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import AiohttpRequest
from everthread.adapters.platforms.telegram.updates import UPDATE_KINDS, UnparsedUpdate, parse_update

POLL_S = 25
BATCH_MAX = 100

UpdateHandler = Callable[[telegram.Update | UnparsedUpdate], Awaitable[None]]
"""Returns once an update is stored or ignored."""


async def poll(bot: telegram.Bot, http: AiohttpRequest, errors: ErrorTranslator, handle: UpdateHandler) -> None:
    """Handle updates until cancelled, pending ones first."""
    with errors.translate():
        await bot.delete_webhook(drop_pending_updates=False)
    offset: int | None = None
    while True:
        with errors.translate():
            parameters: dict[str, Any] = {"limit": BATCH_MAX, "timeout": POLL_S, "allowed_updates": UPDATE_KINDS}
            if offset is not None:
                parameters["offset"] = offset
            updates = await http.updates(f"{bot.base_url}/getUpdates", parameters, errors.call_s + POLL_S)
        await handle_batch([parse_update(update, bot) for update in updates], handle)
        # Send the offset only once: after a week without updates, Telegram may restart at a lower id.
        offset = max((update["update_id"] for update in updates), default=-1) + 1 or None


async def handle_batch(updates: Sequence[telegram.Update | UnparsedUpdate], handle: UpdateHandler) -> None:
    """Handle the updates of each chat in order, and the chats concurrently, so that none delays another."""
    chats: defaultdict[int, list[telegram.Update | UnparsedUpdate]] = defaultdict(list)
    migrated = _map_migrated(updates)
    # After a lost connection, updates can arrive twice and in any order.
    for _, update in sorted({update.update_id: update for update in updates}.items()):
        chats[migrated.get(chat := _chat(update), chat)].append(update)

    async def one_chat(updates: list[telegram.Update | UnparsedUpdate]) -> None:
        for update in updates:
            await handle(update)

    try:
        async with asyncio.TaskGroup() as tasks:
            for batch in chats.values():
                tasks.create_task(one_chat(batch))
    except ExceptionGroup as group:
        # An update that could not be stored is not acknowledged, and arrives again.
        raise group.exceptions[0] from None


def _chat(update: telegram.Update | UnparsedUpdate) -> int:
    if isinstance(update, UnparsedUpdate) or update.effective_chat is None:
        return 0
    return update.effective_chat.id


def _map_migrated(updates: Sequence[telegram.Update | UnparsedUpdate]) -> dict[int, int]:
    """Map supergroups to the groups that they were: updates of the group come first."""
    messages = [
        update.message for update in updates if isinstance(update, telegram.Update) and update.message is not None
    ]
    return {one.chat.id: one.migrate_from_chat_id for one in messages if one.migrate_from_chat_id is not None}
