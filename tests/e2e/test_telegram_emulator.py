"""The Bot API emulator through both libraries that bots are written with: what is sent, and what people see of it."""

from __future__ import annotations

import asyncio
import struct
import zlib

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

from everthread.testing.telegram import protocol as wire

GROUP = -1001

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# --- Who the bot is, and what it hears -------------------------------------------------------------------------------


async def test_it_says_who_the_bot_is(library: Library) -> None:
    async with scene(library, token="4711:SECRET", username="thread_bot") as s:
        me = await s.bot.get_me()
        assert (me.id, me.username, me.is_bot, me.can_read_all_group_messages) == (4711, "thread_bot", True, True)


async def test_a_wrong_token_is_unauthorized(library: Library) -> None:
    async with scene(library) as s, library.bot(s.emulator.base_url, "42:WRONG") as stranger:
        await refused(stranger.get_me(), library.unauthorized, "")


async def test_an_update_comes_again_until_a_higher_offset_confirms_it(library: Library) -> None:
    async with scene(library) as s:
        await s.people.say(ANN, "second")
        first, second = await s.bot.get_updates()
        assert [one.update_id for one in await s.bot.get_updates()] == [first.update_id, second.update_id]
        assert [one.update_id for one in await s.bot.get_updates(limit=1)] == [first.update_id]
        [left] = await s.bot.get_updates(offset=second.update_id)
        assert (left.message.text, left.message.chat.id, left.message.from_user.first_name) == ("second", ANN, "Ann")
        assert len(await s.bot.get_updates()) == 1
        assert not await s.bot.get_updates(offset=second.update_id + 1)
        assert (await s.people.dump()).pending == ()


async def test_a_negative_offset_leaves_only_the_last(library: Library) -> None:
    async with scene(library) as s:
        for text in ("two", "three"):
            await s.people.say(ANN, text)
        assert [one.message.text for one in await s.bot.get_updates(offset=-1)] == ["three"]
        assert len(await s.bot.get_updates()) == 1


async def test_a_long_poll_ends_as_soon_as_somebody_writes(library: Library) -> None:
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


async def test_of_two_who_poll_the_earlier_one_is_told_of_a_conflict(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates()
        earlier = asyncio.create_task(s.bot.get_updates(offset=start.update_id + 1, timeout=10))
        await asyncio.sleep(0.2)
        async with library.bot(s.emulator.base_url, s.emulator.token) as second:
            assert not await second.get_updates(offset=start.update_id + 1)
        # At once, and not when its own time is over.
        async with asyncio.timeout(5):
            await refused(earlier, library.conflict, "terminated by other getUpdates request")


async def test_only_wanted_kinds_of_updates_come_and_the_wish_is_kept(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.bot.get_updates(allowed_updates=["edited_message"])
        said = await s.people.say(ANN, "unwanted")
        assert said.update_id is None
        await s.people.correct(ANN, ANN, said.message_id, "corrected")
        [update] = await s.bot.get_updates(offset=start.update_id + 1)
        assert update.edited_message.text == "corrected"
        assert update.edited_message.edit_date is not None


# --- Texts -----------------------------------------------------------------------------------------------------------


async def test_a_text_is_shown_with_its_entities(library: Library) -> None:
    async with scene(library) as s:
        text = "*bold* _it\\.alic_ 😀 `code` [link](https://example.org)"
        sent = await s.bot.send_message(ANN, text, parse_mode="MarkdownV2")
        assert sent.text == "bold it.alic 😀 code link"
        assert [(one.type, one.offset, one.length) for one in sent.entities] == [
            ("bold", 0, 4),
            ("italic", 5, 7),
            ("code", 16, 4),
            ("text_link", 21, 4),
        ]
        [_, shown] = await s.people.messages(ANN)
        assert shown.marked == "**bold** _it.alic_ 😀 `code` [link](https://example.org/)"


async def test_entities_can_be_given_and_people_mentioned(library: Library) -> None:
    async with scene(library) as s:
        text = f"[Ann](tg://user?id={ANN}) and [somebody](tg://user?id=999)"
        sent = await s.bot.send_message(ANN, text, parse_mode="MarkdownV2")
        [mention] = sent.entities
        assert (mention.type, mention.offset, mention.length, mention.user.id) == ("text_mention", 0, 3, ANN)
        again = await s.bot.send_message(ANN, sent.text, entities=sent.entities)
        assert list(again.entities) == [mention]


async def test_broken_markup_is_refused_in_the_words_of_telegram(library: Library) -> None:
    async with scene(library) as s:
        for text, mode, words in (
            ("one. two", "MarkdownV2", "Character '.' is reserved and must be escaped with the preceding '\\'"),
            ("é *never ends", "MarkdownV2", "Can't find end of Bold entity at byte offset 3"),
            ("<b>never ends", "HTML", 'Can\'t find end tag corresponding to start tag "b"'),
            ("<p>x</p>", "HTML", 'Unsupported start tag "p" at byte offset 0'),
            ("_never ends", "Markdown", "Can't find end of the entity starting at byte offset 0"),
        ):
            await refused(s.bot.send_message(ANN, text, parse_mode=mode), library.bad, f"can't parse entities: {words}")
        assert len(await s.people.messages(ANN)) == 1


async def test_texts_that_are_empty_or_too_long_are_refused(library: Library) -> None:
    async with scene(library, limits=False) as s:
        await refused(s.bot.send_message(ANN, " \n "), library.bad, "message text is empty")
        await refused(s.bot.send_message(ANN, "x" * 4097), library.bad, "message is too long")
        # Counted as Telegram does: what is outside the first plane counts twice.
        await refused(s.bot.send_message(ANN, "😀" * 2049), library.bad, "message is too long")
        assert (await s.bot.send_message(ANN, "😀" * 2048)).text == "😀" * 2048


async def test_unknown_chats_and_people_who_block_the_bot_are_refused(library: Library) -> None:
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


async def test_a_message_is_edited_and_deleted(library: Library) -> None:
    async with scene(library) as s:
        sent = await s.bot.send_message(ANN, "first")
        edited = await s.bot.edit_message_text(
            text="*second*", chat_id=ANN, message_id=sent.message_id, parse_mode="MarkdownV2"
        )
        assert (edited.text, edited.entities[0].type) == ("second", "bold")
        assert edited.edit_date is not None
        [_, shown] = await s.people.messages(ANN)
        assert (shown.text, shown.is_edited) == ("second", True)
        again = s.bot.edit_message_text(
            text="*second*", chat_id=ANN, message_id=sent.message_id, parse_mode="MarkdownV2"
        )
        await refused(again, library.bad, "message is not modified")
        assert await s.bot.delete_message(ANN, sent.message_id)
        assert len(await s.people.messages(ANN)) == 1
        gone = s.bot.edit_message_text(text="third", chat_id=ANN, message_id=sent.message_id)
        await refused(gone, library.bad, "message to edit not found")
        await refused(s.bot.delete_message(ANN, sent.message_id), library.bad, "message to delete not found")
        await s.people.look()
        assert [one.what for one in s.people.seen] == ["said", "sent", "edited", "deleted"]
        assert s.people.texts(ANN) == []


async def test_what_people_wrote_is_not_the_bots_to_edit(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.people.messages(ANN)
        call = s.bot.edit_message_text(text="mine", chat_id=ANN, message_id=start.message_id)
        await refused(call, library.bad, "message can't be edited")


async def test_why_a_message_can_not_be_edited_says_whose_it_is(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.people.messages(ANN)
        sent = await s.bot.send_message(ANN, "first")
        for message_id, why in (
            (start.message_id, "message can't be edited"),
            (sent.message_id, "there is no caption in the message to edit"),
            (sent.message_id + 1, "message to edit not found"),
        ):
            await refused(s.bot.edit_message_caption(chat_id=ANN, message_id=message_id), library.bad, why)
        # Those of a chat of two are counted together with those of all others, and are in one only.
        await s.people.say(ANN + 1, "hello")
        there = s.bot.edit_message_caption(chat_id=ANN, message_id=sent.message_id + 1)
        await refused(there, library.bad, "message to edit not found")
        other = s.bot.edit_message_caption(chat_id=ANN + 1, message_id=sent.message_id + 1)
        await refused(other, library.bad, "message can't be edited")


async def test_it_is_seen_that_the_bot_is_typing(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.send_chat_action(chat_id=ANN, action="typing")
        await s.people.look()
        assert [(one.what, one.chat, one.text) for one in s.people.seen[1:]] == [("typing", ANN, "typing")]


# --- Buttons and commands --------------------------------------------------------------------------------------------


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
        await s.people.look()
        assert [(one.what, one.text) for one in s.people.seen[2:]] == [
            ("pressed", "No"),
            ("toast", "All right."),
            ("edited", "Shall I?"),
        ]


async def test_a_button_carries_64_bytes_and_no_more(library: Library) -> None:
    async with scene(library) as s:
        await s.bot.send_message(ANN, "fits", reply_markup=library.buttons([("ok", "é" * 32)]))
        call = s.bot.send_message(ANN, "does not", reply_markup=library.buttons([("ok", "é" * 32 + "x")]))
        await refused(call, library.bad, "BUTTON_DATA_INVALID")


async def test_the_menu_of_commands_is_kept(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.set_my_commands([library.command("new", "Begin anew"), library.command("stop", "Stop")])
        commands = await s.bot.get_my_commands()
        assert [(one.command, one.description) for one in commands] == [("new", "Begin anew"), ("stop", "Stop")]
        assert (await s.people.dump()).commands == {"new": "Begin anew", "stop": "Stop"}
        await refused(s.bot.set_my_commands([library.command("Not Good", "x")]), library.bad, "BOT_COMMAND_INVALID")


# --- Files -----------------------------------------------------------------------------------------------------------


async def test_files_go_out_with_their_captions(library: Library) -> None:
    async with scene(library) as s:
        picture, note = png(120, 80), b"OggS" + b"\0" * 500
        await s.bot.send_photo(ANN, library.file(picture, "a.png"), caption="*photo*", parse_mode="MarkdownV2")
        await s.bot.send_document(ANN, library.file(b"\x00\r\n--bytes\r\n\xff", "réport.bin"), caption="report")
        await s.bot.send_voice(ANN, library.file(note, "note.ogg"), duration=3)
        _, photo, document, voice = await s.people.messages(ANN)
        assert [one.file.kind for one in (photo, document, voice) if one.file] == ["photo", "document", "voice"]
        assert (photo.marked, document.text, voice.text) == ("**photo**", "report", "")
        assert photo.file
        assert document.file
        assert voice.file
        assert await s.people.file(photo.file.file_id) == picture
        assert document.file.name == "réport.bin"
        assert await s.people.file(document.file.file_id) == b"\x00\r\n--bytes\r\n\xff"
        assert await s.people.file(voice.file.file_id) == note


async def test_what_is_there_is_sent_again_by_its_id(library: Library) -> None:
    async with scene(library) as s:
        sent = await s.bot.send_document(ANN, library.file(b"once", "a.txt"))
        again = await s.bot.send_document(ANN, sent.document.file_id)
        assert again.document.file_id == sent.document.file_id
        await refused(s.bot.send_document(ANN, "nonsense"), library.bad, "wrong file identifier")
        await refused(s.bot.send_photo(ANN, library.file(b"no picture", "a.png")), library.bad, "IMAGE_PROCESS_FAILED")


async def test_files_come_in(library: Library) -> None:
    async with scene(library) as s:
        picture = png(200, 100)
        await s.people.say(ANN, "look at this", file=wire.AttachedFile("photo", picture))
        await s.people.say(ANN, file=wire.AttachedFile("voice", b"OggS...", duration_s=4))
        await s.people.say(ANN, file=wire.AttachedFile("document", b"a,b\n1,2\n", "table.csv", "text/csv"))
        _, photo, voice, document = [one.message for one in await s.bot.get_updates()]
        assert photo.caption == "look at this"
        largest = photo.photo[-1]
        assert (largest.width, largest.height, largest.file_size) == (200, 100, len(picture))
        assert await library.download(s.bot, largest.file_id) == picture
        assert voice.voice.mime_type == "audio/ogg"
        assert await library.download(s.bot, voice.voice.file_id) == b"OggS..."
        assert (document.document.file_name, document.document.mime_type) == ("table.csv", "text/csv")
        assert await library.download(s.bot, document.document.file_id) == b"a,b\n1,2\n"
        await refused(s.bot.get_file("nonsense"), library.bad, "invalid file_id")


# --- Groups ----------------------------------------------------------------------------------------------------------


async def test_in_a_group_mentions_and_replies_are_told_apart(library: Library) -> None:
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
        # A thread of answers has a number, and is no topic.
        assert reply.message_thread_id == asked.message_id
        assert not reply.is_topic_message
        lost = s.bot.send_message(GROUP, "x", reply_parameters=library.reply(999))
        await refused(lost, library.bad, "message to be replied not found")


async def test_with_privacy_the_bot_hears_only_what_is_meant_for_it(library: Library) -> None:
    async with scene(library, username="thread_bot", privacy=True) as s:
        await s.people.group(wire.Group(GROUP, "Garden"))
        sent = await s.bot.send_message(GROUP, "Hello.")
        for text in ("just talking", "hey @thread_bot", "/new", "/new@other_bot", "/new@thread_bot", "@thread_bots"):
            await s.people.say(ANN, text, chat=GROUP)
        await s.people.say(ANN, "an answer", chat=GROUP, reply_to=sent.message_id)
        heard = [one.message.text for one in await s.bot.get_updates()][1:]
        assert heard == ["hey @thread_bot", "/new", "/new@thread_bot", "an answer"]
        assert not (await s.bot.get_me()).can_read_all_group_messages


async def test_topics_are_threads_of_their_own(library: Library) -> None:
    async with scene(library) as s:
        await s.people.group(wire.Group(GROUP, "Garden", is_forum=True))
        roses = await s.people.open_topic(ANN, GROUP, "Roses")
        herbs = (await s.bot.create_forum_topic(GROUP, "Herbs")).message_thread_id
        await s.people.say(ANN, "in roses", chat=GROUP, thread=roses)
        await s.people.say(ANN, "in general", chat=GROUP)
        _, created, there, general = [one.message for one in await s.bot.get_updates()]
        assert created.forum_topic_created.name == "Roses"
        assert (there.message_thread_id, there.is_topic_message) == (roses, True)
        # As on the real one: what answers nothing answers the message that opened the topic.
        assert there.reply_to_message.message_id == roses
        assert general.message_thread_id is None
        await s.bot.send_message(GROUP, "to roses", message_thread_id=roses)
        await s.bot.send_message(GROUP, "to herbs", message_thread_id=herbs)
        await s.people.look()
        assert s.people.texts(GROUP, roses) == ["to roses"]
        assert [one.text for one in await s.people.messages(GROUP, herbs)] == ["", "to herbs"]
        call = s.bot.send_message(GROUP, "nowhere", message_thread_id=999)
        await refused(call, library.bad, "message thread not found")


async def test_a_group_that_removed_the_bot_is_forbidden(library: Library) -> None:
    async with scene(library) as s:
        await s.people.group(wire.Group(GROUP, "Garden"))
        await s.people.block(GROUP)
        await refused(s.bot.send_message(GROUP, "hi"), library.forbidden, "bot was kicked from the supergroup chat")
