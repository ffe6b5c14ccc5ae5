"""Injected faults, as both bot libraries report them."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

from everthread.testing.telegram.protocol import Fault

BOB = 8


pytestmark = [
    pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__),
    # python-telegram-bot warns about its own use of a deprecated attribute of its error class.
    pytest.mark.filterwarnings("ignore:.*retry_after.*:telegram.warnings.PTBDeprecationWarning"),
]


async def test_repeated_429_responses_pass(library: Library) -> None:
    async with scene(library) as s:
        await s.people.fault(Fault("busy", "sendMessage", times=3, seconds=7))
        for _ in range(3):
            await refused(s.bot.send_message(ANN, "hello"), library.busy, "Retry in 7 seconds")
        await s.bot.send_message(ANN, "hello")
        await s.people.refresh()
        assert s.people.texts(ANN) == ["hello"]


async def test_a_lost_response_leaves_the_message_sent(library: Library) -> None:
    async with scene(library) as s:
        await s.people.fault(Fault("drop_after", "sendMessage"))
        await refused(s.bot.send_message(ANN, "sent"), library.broken, "")
        await s.people.fault(Fault("drop_before", "sendMessage"))
        await refused(s.bot.send_message(ANN, "not sent"), library.broken, "")
        await s.people.refresh()
        assert s.people.texts(ANN) == ["sent"]


async def test_updates_whose_response_was_lost_are_repeated(library: Library) -> None:
    async with scene(library) as s:
        await s.people.fault(Fault("drop_after", "getUpdates"))
        await refused(s.bot.get_updates(), library.broken, "")
        assert [one.message.text for one in await s.bot.get_updates()] == ["/start"]


async def test_servers_that_fail_are_reported_as_such(library: Library) -> None:
    async with scene(library) as s:
        await s.people.fault(Fault("error", "sendMessage"))
        await refused(s.bot.send_message(ANN, "x"), library.server, "Internal Server Error")
        await s.people.fault(Fault("unavailable", "sendMessage"))
        await refused(s.bot.send_message(ANN, "x"), library.server, "Bad Gateway")
        await s.people.fault(Fault("gibberish", "sendMessage"))
        with pytest.raises(Exception, match="(?i)decode|Bad Gateway .*html"):
            await s.bot.send_message(ANN, "x")
        await s.people.fault(Fault("refuse", "sendMessage"))
        await refused(s.bot.send_message(ANN, "x"), library.forbidden, "the test refuses")


async def test_a_fault_can_apply_to_one_chat_and_be_healed(library: Library) -> None:
    async with scene(library) as s:
        await s.people.say(BOB, "hello")
        await s.people.fault(Fault("error", chat=BOB, times=100))
        await s.bot.send_message(ANN, "through")
        await refused(s.bot.send_message(BOB, "x"), library.server, "")
        await s.people.heal()
        await s.bot.send_message(BOB, "through")


async def test_a_delayed_response_arrives_late(library: Library) -> None:
    async with scene(library) as s:
        await s.people.fault(Fault("delay", "sendMessage", seconds=0.5))
        begun = time.monotonic()
        sending = asyncio.create_task(s.bot.send_message(ANN, "late"))
        await s.people.until(lambda: s.people.texts(ANN) == ["late"], "what was sent")
        assert not sending.done()
        await sending
        assert time.monotonic() - begun >= 0.5


async def test_a_cut_aborts_open_requests_and_blocks_new_ones_until_it_is_over(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        poll = asyncio.create_task(s.bot.get_updates(offset=start.update_id + 1, timeout=20))
        await asyncio.sleep(0.2)
        await s.people.cut(1.0)
        cut_at = time.monotonic()
        await refused(poll, library.broken, "")
        assert time.monotonic() - cut_at < 0.9, "the cut did not abort the poll"
        await refused(s.bot.send_message(ANN, "lost"), library.broken, "")
        # Users are not affected by the cut.
        await s.people.say(ANN, "meanwhile")
        await asyncio.sleep(max(0.0, cut_at + 1.1 - time.monotonic()))
        [update] = await s.bot.get_updates(offset=start.update_id + 1)
        assert update.message.text == "meanwhile"


async def test_updates_are_duplicated_or_reordered_on_demand(library: Library) -> None:
    async with scene(library) as s:
        await s.people.say(ANN, "second")
        await s.people.fault(Fault("duplicate"))
        assert [one.message.text for one in await s.bot.get_updates()] == ["/start", "/start", "second", "second"]
        await s.people.fault(Fault("reorder"))
        assert [one.message.text for one in await s.bot.get_updates()] == ["second", "/start"]
        assert [one.message.text for one in await s.bot.get_updates()] == ["/start", "second"]


async def test_a_confirmed_update_is_redelivered_under_its_id(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        assert not await s.bot.get_updates(offset=start.update_id + 1)
        await s.people.redeliver(start.update_id)
        [again] = await s.bot.get_updates(offset=start.update_id + 1, timeout=5)
        assert (again.update_id, again.message.message_id) == (start.update_id, start.message.message_id)
        assert not await s.bot.get_updates(offset=start.update_id + 1)


async def test_a_poll_whose_client_disconnected_consumes_no_update(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        url = f"{s.emulator.base_url}/bot{s.emulator.token}/getUpdates"
        with pytest.raises(TimeoutError):
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(0.2)) as dying:
                await dying.post(url, json={"offset": start.update_id + 1, "timeout": 30})
        await s.people.redeliver(start.update_id)
        await asyncio.sleep(0.1)
        assert len(await s.bot.get_updates(offset=start.update_id + 1)) == 1
