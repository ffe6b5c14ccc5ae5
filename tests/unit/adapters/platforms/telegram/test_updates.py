"""Conversion of Telegram updates: sender, chat, thread, and messages addressed to the bot."""

from __future__ import annotations

from typing import Any

import pytest
import telegram

from everthread.adapters.platforms.telegram.updates import BotIdentity, convert_update
from everthread.domain.model import ChatType
from everthread.ports.platform import Media, MovedChat, Quoted, Update

BOT = BotIdentity("telegram", 42, "test_bot", "mention", frozenset({"new", "status"}))
ALL = BotIdentity("telegram", 42, "test_bot", "all", frozenset({"new", "status"}))
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee"}
ME = {"id": 42, "is_bot": True, "first_name": "Bot", "username": "test_bot"}
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann"}
GROUP = {"id": -100, "type": "supergroup", "title": "Office"}


def message(text: str = "", chat: dict[str, Any] = PRIVATE, **more: Any) -> dict[str, Any]:
    return {"message_id": 1, "date": 1790000000, "chat": chat, "from": ANN, **({"text": text} if text else {}), **more}


def came(bot: BotIdentity = BOT, **what: Any) -> Update | None:
    update = convert_update(telegram.Update.de_json({"update_id": 5, **what}, None), bot)
    assert not isinstance(update, MovedChat)
    return update


def said(text: str = "", chat: dict[str, Any] = PRIVATE, bot: BotIdentity = BOT, **more: Any) -> Update | None:
    return came(bot, message=message(text, chat, **more))


def mention(text: str, of: str = "@test_bot") -> list[dict[str, Any]]:
    return [{"type": "mention", "offset": text.index(of), "length": len(of)}]


def test_a_private_message_is_converted() -> None:
    assert said("hello") == Update(
        "telegram", "42", "5", "7", ChatType.DM, "7", "hello", None, "Ann Lee", message_id="1"
    )


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("hello", None),
        ("hello @test_bot", "hello @test_bot"),
        ("@test_bot hello", "hello"),
        ("@TEST_BOT: hello", "hello"),
        ("@test_bot", "@test_bot"),
        ("/new", "/new"),
        ("/new@test_bot title", "/new@test_bot title"),
        ("/new@other_bot", None),
        ("/weather", None),
        ("/weather@test_bot", "/weather@test_bot"),
    ],
)
def test_a_group_message_needs_a_mention_or_a_command(text: str, heard: str | None) -> None:
    lower = text.lower()
    entities = mention(lower) if "@test_bot" in lower and not text.startswith("/") else []
    update = said(text, GROUP, entities=entities)
    assert (update.text if update is not None else None) == heard


def test_replies_to_the_bot_and_mentions_in_captions_are_accepted() -> None:
    before = message("what I said", GROUP, **{"from": ME})
    update = said("really?", GROUP, reply_to_message=before)
    assert update is not None
    assert update.reply_to == Quoted("what I said", "Bot")
    others = message("what I said", GROUP)
    assert said("really?", GROUP, reply_to_message=others) is None
    photo = [{"file_id": "p", "file_unique_id": "q", "width": 1, "height": 1, "file_size": 9}]
    caption = "look @test_bot"
    seen = said("", GROUP, photo=photo, caption=caption, caption_entities=mention(caption))
    assert seen is not None
    assert seen.media == (Media("image", "photo.jpg", "image/jpeg", 9, "p"),)
    assert said("", GROUP, photo=photo, caption="look") is None


def test_a_topic_is_a_thread_and_its_first_message_is_not_quoted() -> None:
    opened = message("", GROUP, **{"from": ME}, forum_topic_created={"name": "T", "icon_color": 1})
    in_topic = {"message_thread_id": 3, "is_topic_message": True, "reply_to_message": opened}
    assert said("hello", GROUP, **in_topic) is None
    update = said("hello", GROUP, ALL, **in_topic)
    assert update is not None
    assert (update.chat_type, update.thread, update.reply_to) == (ChatType.THREAD, "3", None)
    in_group = said("hello", GROUP, ALL, message_thread_id=3)
    assert in_group is not None
    assert (in_group.chat_type, in_group.thread) == (ChatType.GROUP, None), "a reply in a group without topics"


def test_messages_of_bots_are_dropped_and_anonymous_admins_are_the_group() -> None:
    robot = {"id": 9, "is_bot": True, "first_name": "Robot"}
    assert said("hello", GROUP, ALL, **{"from": robot}) is None
    hidden = said("hello", GROUP, ALL, **{"from": robot}, sender_chat=GROUP)
    assert hidden is not None
    assert (hidden.user, hidden.user_name) == ("-100", "Office")


def test_a_pressed_button_is_its_command_in_the_same_chat() -> None:
    shown = message("Which?", GROUP, **{"from": ME}, message_thread_id=3, is_topic_message=True)
    query = {"id": "q", "from": ANN, "chat_instance": "i", "data": "/resume 1", "message": shown}
    update = came(callback_query=query)
    assert update == Update("telegram", "42", "5", "-100", ChatType.THREAD, "7", "/resume 1", "3", "Ann Lee")
    old = {**query, "message": {"chat": PRIVATE, "message_id": 1, "date": 0}}
    assert came(callback_query=old) == Update(
        "telegram", "42", "5", "7", ChatType.DM, "7", "/resume 1", None, "Ann Lee"
    )
    nowhere = {**query, "message": {"chat": {**GROUP, "is_forum": True}, "message_id": 1, "date": 0}}
    assert came(callback_query=nowhere) is None, "the topic of the button is unknown"
    assert came(callback_query={**query, "data": None, "game_short_name": "g"}) is None


def test_only_the_selected_quote_of_a_reply_is_passed_on() -> None:
    before = message("a long story about a lamp", PRIVATE, **{"from": ME})
    update = said("why?", reply_to_message=before, quote={"text": "a lamp", "position": 19})
    assert update is not None
    assert update.reply_to == Quoted("a lamp", "Bot")


@pytest.mark.parametrize(
    ("given", "media"),
    [
        ({"voice": {"duration": 3, "mime_type": "audio/ogg"}}, Media("voice", "voice.ogg", "audio/ogg", 9, "f")),
        ({"document": {"file_name": "a.txt", "mime_type": "text/plain"}}, Media("file", "a.txt", "text/plain", 9, "f")),
        ({"document": {"file_name": "a.png", "mime_type": "image/png"}}, Media("image", "a.png", "image/png", 9, "f")),
        ({"audio": {"duration": 3, "file_name": "a.mp3"}}, Media("audio", "a.mp3", "", 9, "f")),
        ({"video": {"duration": 3, "width": 1, "height": 1}}, Media("video", "video", "", 9, "f")),
        ({"video_note": {"duration": 3, "length": 1}}, Media("video", "video.mp4", "video/mp4", 9, "f")),
    ],
)
def test_attachments_are_converted(given: dict[str, Any], media: Media) -> None:
    [(name, about)] = given.items()
    file = {**about, "file_id": "f", "file_unique_id": "u", "file_size": 9}
    update = came(message=message("", **{name: file}))
    assert update is not None
    assert update.media == (media,)


def test_a_sticker_is_its_emoji_and_service_messages_are_dropped() -> None:
    sticker = {"file_id": "f", "file_unique_id": "u", "type": "regular", "width": 1, "height": 1, "emoji": "🙂"}
    update = said("", sticker={**sticker, "is_animated": False, "is_video": False})
    assert update is not None
    assert update.text == "🙂"
    assert said("", GROUP, ALL, new_chat_title="New") is None
    assert came(edited_message=message("changed")) is None


@pytest.mark.parametrize("text", ["/start", "/start abc", "/start@test_bot"])
def test_the_start_command_asks_for_help(text: str) -> None:
    update = said(text)
    assert update is not None
    assert update.text == "/help"
