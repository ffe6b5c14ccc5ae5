"""Bot API methods about the bot itself, called through both bot libraries."""

from __future__ import annotations

import asyncio

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def test_get_me_returns_the_bot(library: Library) -> None:
    async with scene(library, token="4711:SECRET", username="thread_bot") as s:
        me = await s.bot.get_me()
        assert (me.id, me.username, me.is_bot, me.can_read_all_group_messages) == (4711, "thread_bot", True, True)


async def test_a_long_poll_ends_with_the_next_message(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        begun = asyncio.get_running_loop().time()
        poll = asyncio.create_task(s.bot.get_updates(offset=start.update_id + 1, timeout=10))
        await asyncio.sleep(0.2)
        assert not poll.done()
        await s.people.say(ANN, "here")
        [update] = await poll
        assert update.message.text == "here"
        assert asyncio.get_running_loop().time() - begun < 5


async def test_an_earlier_poll_ends_with_a_conflict(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        earlier = asyncio.create_task(s.bot.get_updates(offset=start.update_id + 1, timeout=10))
        await asyncio.sleep(0.2)
        async with library.bot(s.emulator.base_url, s.emulator.token) as second:
            assert not await second.get_updates(offset=start.update_id + 1)
        # The earlier poll ends at once, before its own timeout.
        async with asyncio.timeout(5):
            await refused(earlier, library.conflict, "terminated by other getUpdates request")


async def test_the_menu_of_commands_is_stored(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.set_my_commands([library.command("new", "Begin anew"), library.command("stop", "Stop")])
        commands = await s.bot.get_my_commands()
        assert [(one.command, one.description) for one in commands] == [("new", "Begin anew"), ("stop", "Stop")]
        assert (await s.people.dump()).commands == {"new": "Begin anew", "stop": "Stop"}
        await refused(s.bot.set_my_commands([library.command("Not Good", "x")]), library.bad, "BOT_COMMAND_INVALID")
