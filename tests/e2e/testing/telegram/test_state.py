"""Chats, topics and blocked bots, through both bot libraries."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

from everthread.testing.telegram import protocol as wire

GROUP = -1001


pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def test_sending_to_unknown_chats_and_users_who_blocked_the_bot_is_refused(library: Library) -> None:
    async with scene(library) as s:
        await refused(s.bot.send_message(999, "hello"), library.bad, "chat not found")
        await refused(s.bot.send_message("@nobody", "hello"), library.bad, "chat not found")
        await s.people.introduce(8, "Bob")
        await refused(s.bot.send_message(8, "hello"), library.forbidden, "bot can't initiate conversation with a user")
        await s.people.block(ANN)
        await refused(s.bot.send_message(ANN, "hello"), library.forbidden, "bot was blocked by the user")
        update = (await s.bot.get_updates())[-1]
        assert update.my_chat_member.new_chat_member.status == "kicked"
        await s.people.say(ANN, "I am back")
        await s.bot.send_message(ANN, "hello")


async def test_each_topic_is_a_thread(library: Library) -> None:
    async with scene(library) as s:
        await s.people.group(wire.Group(GROUP, "Garden", is_forum=True))
        roses = await s.people.open_topic(ANN, GROUP, "Roses")
        herbs = (await s.bot.create_forum_topic(GROUP, "Herbs")).message_thread_id
        await s.people.say(ANN, "in roses", chat=GROUP, thread=roses)
        await s.people.say(ANN, "in general", chat=GROUP)
        _, created, message, general = [one.message for one in await s.bot.get_updates()]
        assert created.forum_topic_created.name == "Roses"
        assert (message.message_thread_id, message.is_topic_message) == (roses, True)
        # As on Telegram: a message without a reply target replies to the message that opened the topic.
        assert message.reply_to_message.message_id == roses
        assert general.message_thread_id is None
        await s.bot.send_message(GROUP, "to roses", message_thread_id=roses)
        await s.bot.send_message(GROUP, "to herbs", message_thread_id=herbs)
        await s.people.refresh()
        assert s.people.texts(GROUP, roses) == ["to roses"]
        assert [one.text for one in await s.people.messages(GROUP, herbs)] == ["", "to herbs"]
        call = s.bot.send_message(GROUP, "nowhere", message_thread_id=999)
        await refused(call, library.bad, "message thread not found")


async def test_a_group_that_removed_the_bot_is_forbidden(library: Library) -> None:
    async with scene(library) as s:
        await s.people.group(wire.Group(GROUP, "Garden"))
        await s.people.block(GROUP)
        await refused(s.bot.send_message(GROUP, "hi"), library.forbidden, "bot was kicked from the supergroup chat")
