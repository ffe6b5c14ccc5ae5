"""Messages of users, as a bot receives them."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

from everthread.testing.telegram import protocol as wire

GROUP = -1001


pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


async def test_a_button_is_pressed_and_answered(library: Library) -> None:
    async with scene(library) as s:
        markup = library.buttons([("Yes", "answer:yes"), ("No", "answer:no")], [("Later", "later")])
        sent = await s.bot.send_message(ANN, "Shall I?", reply_markup=markup)
        [_, shown] = await s.people.messages(ANN)
        assert shown.buttons == ((("Yes", "answer:yes"), ("No", "answer:no")), (("Later", "later"),))
        await s.people.press(ANN, ANN, sent.message_id, "No")
        query = (await s.bot.get_updates())[-1].callback_query
        assert (query.data, query.from_user.id, query.message.message_id) == ("answer:no", ANN, sent.message_id)
        assert await s.bot.answer_callback_query(query.id, text="All right.")
        await refused(s.bot.answer_callback_query(query.id), library.bad, "query is too old")
        await s.bot.edit_message_reply_markup(chat_id=ANN, message_id=sent.message_id, reply_markup=None)
        [_, shown] = await s.people.messages(ANN)
        assert shown.buttons == ()
        await s.people.refresh()
        assert [(one.what, one.text) for one in s.people.log[2:]] == [
            ("pressed", "No"),
            ("toast", "All right."),
            ("edited", "Shall I?"),
        ]


async def test_mentions_and_replies_in_a_group_are_distinguished(library: Library) -> None:
    async with scene(library, username="thread_bot") as s:
        await s.people.group(wire.Group(GROUP, "Garden"))
        asked = await s.people.say(ANN, "well @thread_bot, what now?", chat=GROUP)
        sent = await s.bot.send_message(GROUP, "This.", reply_parameters=library.reply(asked.message_id))
        assert sent.reply_to_message.message_id == asked.message_id
        await s.people.say(ANN, "and then?", chat=GROUP, reply_to=sent.message_id)
        _, mention, reply = [one.message for one in await s.bot.get_updates()]
        assert (mention.chat.type, mention.chat.title) == ("supergroup", "Garden")
        assert [(one.type, one.offset, one.length) for one in mention.entities] == [("mention", 5, 11)]
        assert (reply.reply_to_message.from_user.id, reply.reply_to_message.text) == (42, "This.")
        # A reply thread has an id and is not a topic.
        assert reply.message_thread_id == asked.message_id
        assert not reply.is_topic_message
        lost = s.bot.send_message(GROUP, "x", reply_parameters=library.reply(999))
        await refused(lost, library.bad, "message to be replied not found")


async def test_in_privacy_mode_the_bot_receives_only_messages_addressed_to_it(library: Library) -> None:
    async with scene(library, username="thread_bot", privacy=True) as s:
        await s.people.group(wire.Group(GROUP, "Garden"))
        sent = await s.bot.send_message(GROUP, "Hello.")
        for text in ("just talking", "hey @thread_bot", "/new", "/new@other_bot", "/new@thread_bot", "@thread_bots"):
            await s.people.say(ANN, text, chat=GROUP)
        await s.people.say(ANN, "an answer", chat=GROUP, reply_to=sent.message_id)
        heard = [one.message.text for one in await s.bot.get_updates()][1:]
        assert heard == ["hey @thread_bot", "/new", "/new@thread_bot", "an answer"]
        assert not (await s.bot.get_me()).can_read_all_group_messages
