"""Updates received with getUpdates: order, concurrency and acknowledgement."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
import telegram
from tests.fakes.scripted import ScriptedService
from tests.runtime import until

from everthread.adapters.platforms.telegram.errors import ErrorTranslator
from everthread.adapters.platforms.telegram.http import AiohttpRequest
from everthread.adapters.platforms.telegram.polling import handle_batch, poll
from everthread.adapters.platforms.telegram.updates import UnparsedUpdate
from everthread.testing.telegram.server import TOKEN, TelegramEmulator
from everthread.testing.telegram.users import TelegramUsers

Received = telegram.Update | UnparsedUpdate


def update(number: int, chat: int = 7, migrate_from: int | None = None) -> telegram.Update:
    place = telegram.Chat(chat, telegram.Chat.PRIVATE if chat > 0 else telegram.Chat.SUPERGROUP)
    message = telegram.Message(number, datetime.now(UTC), place, text=str(number), migrate_from_chat_id=migrate_from)
    return telegram.Update(number, message=message)


async def handled(*updates: Received) -> list[int]:
    numbers: list[int] = []

    async def handle(update: Received) -> None:
        numbers.append(update.update_id)

    await handle_batch(updates, handle)
    return numbers


async def test_updates_of_a_chat_are_handled_once_and_in_order() -> None:
    assert await handled(update(3), update(1), update(3), UnparsedUpdate(2, "KeyError"), update(1)) == [1, 3, 2]


async def test_a_chat_that_waits_delays_no_other() -> None:
    free, order = asyncio.Event(), list[int]()

    async def handle(update: Received) -> None:
        if update.update_id == 1:
            await free.wait()
        order.append(update.update_id)
        if update.update_id == 2:
            free.set()

    await handle_batch([update(1, chat=7), update(2, chat=8), update(3, chat=7)], handle)
    assert order == [2, 1, 3]


async def test_updates_of_an_upgraded_group_follow_those_of_the_old_one() -> None:
    free, order = asyncio.Event(), list[int]()

    async def handle(update: Received) -> None:
        if update.update_id == 1:
            asyncio.get_running_loop().call_later(0.01, free.set)
            await free.wait()
        order.append(update.update_id)

    await handle_batch([update(1, chat=-5), update(2, chat=-1005, migrate_from=-5)], handle)
    assert order == [1, 2]


async def test_an_error_of_the_handler_is_raised() -> None:
    async def handle(update: Received) -> None:
        raise LookupError("not stored")

    with pytest.raises(LookupError, match="not stored"):
        await handle_batch([update(1)], handle)


async def test_an_update_is_acknowledged_by_the_request_after_it_was_handled() -> None:
    async with TelegramEmulator() as emulator, TelegramUsers(emulator.base_url) as users:
        http = AiohttpRequest(5.0)
        bot = telegram.Bot(emulator.token, f"{emulator.base_url}/bot", request=http, get_updates_request=http)
        handling, free = asyncio.Event(), asyncio.Event()

        async def handle(update: Received) -> None:
            handling.set()
            await free.wait()

        polling = asyncio.ensure_future(poll(bot, http, ErrorTranslator(emulator.token, 5.0), handle))
        await users.say(7, "hello")
        await asyncio.wait_for(handling.wait(), 5.0)
        assert len((await users.dump()).pending) == 1
        free.set()
        await until(lambda: not emulator.state.updates.pending)
        polling.cancel()
        await asyncio.wait({polling})
        await http.shutdown()


async def test_an_offset_is_sent_once_so_that_lower_ids_are_received_later() -> None:
    def response(*ids: int) -> dict[str, object]:
        return {"ok": True, "result": [{"update_id": number} for number in ids]}

    handled: list[int] = []

    async def handle(update: Received) -> None:
        handled.append(update.update_id)

    with ScriptedService() as service:
        service.script(f"POST /bot{TOKEN}/deleteWebhook", {"ok": True, "result": True})
        service.script(f"POST /bot{TOKEN}/getUpdates", response(900), response(), response(3), response())
        http = AiohttpRequest(5.0)
        bot = telegram.Bot(TOKEN, f"{service.address}/bot", request=http, get_updates_request=http)
        polling = asyncio.ensure_future(poll(bot, http, ErrorTranslator(TOKEN, 5.0), handle))
        await until(lambda: len(service.requests) > 5)
        polling.cancel()
        await asyncio.wait({polling})
        await http.shutdown()
        requests = [one.body for one in service.requests if one.path.endswith("/getUpdates")]
    assert handled == [900, 3]
    assert [one.get("offset") for one in requests[:5]] == [None, 901, None, 4, None]
