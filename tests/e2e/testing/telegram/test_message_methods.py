"""Bot API methods that send, edit and delete messages, called through both bot libraries."""

from __future__ import annotations

import pytest
from tests.e2e.telegram_fixture import ANN, refused, scene
from tests.e2e.telegram_libraries import LIBRARIES, Library

pytestmark = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: type(library).__name__)


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


async def test_entities_can_be_passed_and_users_mentioned(library: Library) -> None:
    async with scene(library) as s:
        text = f"[Ann](tg://user?id={ANN}) and [somebody](tg://user?id=999)"
        sent = await s.bot.send_message(ANN, text, parse_mode="MarkdownV2")
        [mention] = sent.entities
        assert (mention.type, mention.offset, mention.length, mention.user.id) == ("text_mention", 0, 3, ANN)
        again = await s.bot.send_message(ANN, sent.text, entities=sent.entities)
        assert list(again.entities) == [mention]


async def test_invalid_markup_is_refused_with_telegrams_error_text(library: Library) -> None:
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
        # Length is counted in UTF-16 code units, as Telegram does.
        await refused(s.bot.send_message(ANN, "😀" * 2049), library.bad, "message is too long")
        assert (await s.bot.send_message(ANN, "😀" * 2048)).text == "😀" * 2048


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
        await s.people.refresh()
        assert [one.what for one in s.people.log] == ["said", "sent", "edited", "deleted"]
        assert s.people.texts(ANN) == []


async def test_the_bot_can_not_edit_messages_of_users(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.people.messages(ANN)
        call = s.bot.edit_message_text(text="mine", chat_id=ANN, message_id=start.message_id)
        await refused(call, library.bad, "message can't be edited")


async def test_the_error_of_an_edit_distinguishes_foreign_own_and_missing_messages(library: Library) -> None:
    async with scene(library) as s:
        [start] = await s.people.messages(ANN)
        sent = await s.bot.send_message(ANN, "first")
        for message_id, why in (
            (start.message_id, "message can't be edited"),
            (sent.message_id, "there is no caption in the message to edit"),
            (sent.message_id + 1, "message to edit not found"),
        ):
            await refused(s.bot.edit_message_caption(chat_id=ANN, message_id=message_id), library.bad, why)
        # Private chats share one sequence of message ids; each id exists in one chat only.
        await s.people.say(ANN + 1, "hello")
        edit = s.bot.edit_message_caption(chat_id=ANN, message_id=sent.message_id + 1)
        await refused(edit, library.bad, "message to edit not found")
        other = s.bot.edit_message_caption(chat_id=ANN + 1, message_id=sent.message_id + 1)
        await refused(other, library.bad, "message can't be edited")


async def test_typing_is_logged(library: Library) -> None:
    async with scene(library) as s:
        assert await s.bot.send_chat_action(chat_id=ANN, action="typing")
        await s.people.refresh()
        assert [(one.what, one.chat, one.text) for one in s.people.log[1:]] == [("typing", ANN, "typing")]


async def test_button_data_is_limited_to_64_bytes(library: Library) -> None:
    async with scene(library) as s:
        await s.bot.send_message(ANN, "fits", reply_markup=library.buttons([("ok", "é" * 32)]))
        call = s.bot.send_message(ANN, "does not", reply_markup=library.buttons([("ok", "é" * 32 + "x")]))
        await refused(call, library.bad, "BUTTON_DATA_INVALID")
