"""Bot API objects as JSON."""

import msgspec

from everthread.testing.telegram.objects import Chat, Message, MessageEntity, PhotoSize, Update, User

CHAT = Chat(7, "private", first_name="Ann")


def test_fields_without_a_value_are_left_out_and_the_sender_is_called_from() -> None:
    message = Message(message_id=1, chat=CHAT, date=5, from_=User(7, False, "Ann"), text="hello")
    assert msgspec.to_builtins(message) == {
        "message_id": 1,
        "from": {"id": 7, "is_bot": False, "first_name": "Ann"},
        "chat": {"id": 7, "type": "private", "first_name": "Ann"},
        "date": 5,
        "text": "hello",
    }


def test_the_words_of_a_message_are_its_text_or_its_caption() -> None:
    bold = (MessageEntity("bold", 1, 2),)
    photo = Message(
        message_id=1, chat=CHAT, date=5, photo=(PhotoSize("f", "u", 1, 1, 9),), caption="look", caption_entities=bold
    )
    assert (photo.words, photo.marks, photo.is_by_bot) == ("look", bold, False)
    assert bold[0].end == 3


def test_an_update_is_named_after_its_content() -> None:
    message = Message(message_id=1, chat=CHAT, date=5)
    assert Update(1, message=message).kind == "message"
    assert Update(1, edited_message=message).kind == "edited_message"
