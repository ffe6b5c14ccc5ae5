"""Session keys, owners and texts of incoming messages."""

from __future__ import annotations

from everthread.config.schema import PlatformAccount
from everthread.domain.model import ChatType, SessionKey
from everthread.gateway.routing import is_shared, key_of, message_text, owner_of
from everthread.ports.platform import Media, Quoted, Update

ACCOUNT = PlatformAccount("telegram")
DM = Update("telegram", "bot", "1", "42", ChatType.DM, "42", "hello", user_name="Anna")
GROUP = Update("telegram", "bot", "2", "-7", ChatType.GROUP, "42", "hello", user_name="Anna")
THREAD = Update("telegram", "bot", "3", "-7", ChatType.THREAD, "42", "hello", "9", user_name="Anna")


def test_the_key_of_a_direct_message_names_the_chat_and_its_thread() -> None:
    assert str(key_of(DM, "main", ACCOUNT)) == "agent:main:telegram:dm:42"
    threaded = Update("telegram", "bot", "1", "42", ChatType.DM, "42", "hello", "5")
    assert str(key_of(threaded, "main", ACCOUNT)) == "agent:main:telegram:dm:42:5"


def test_group_members_have_separate_sessions_unless_groups_are_shared() -> None:
    assert str(key_of(GROUP, "main", ACCOUNT)) == "agent:main:telegram:group:-7::42"
    assert str(key_of(GROUP, "main", PlatformAccount("telegram", groups="shared"))) == "agent:main:telegram:group:-7"


def test_a_thread_is_shared_unless_threads_are_per_user() -> None:
    assert str(key_of(THREAD, "main", ACCOUNT)) == "agent:main:telegram:thread:-7:9"
    assert (
        str(key_of(THREAD, "main", PlatformAccount("telegram", threads="per_user")))
        == "agent:main:telegram:thread:-7:9:42"
    )


def test_a_shared_session_belongs_to_its_group_and_others_to_their_user() -> None:
    assert owner_of(key_of(DM, "main", ACCOUNT), "anna") == "anna"
    assert owner_of(key_of(GROUP, "main", ACCOUNT), "anna") == "anna"
    thread = key_of(THREAD, "main", ACCOUNT)
    assert is_shared(thread)
    assert owner_of(thread, "anna") == "group:telegram:-7:9"


def test_a_message_in_a_shared_session_names_its_sender() -> None:
    assert message_text(DM, key_of(DM, "main", ACCOUNT)) == "hello"
    assert message_text(THREAD, key_of(THREAD, "main", ACCOUNT)) == "Anna: hello"


def test_attachments_are_named_and_the_replied_message_is_quoted() -> None:
    update = Update(
        *("telegram", "bot", "1", "42", ChatType.DM, "42", "look"),
        media=(Media("image", "cat.png", "image/png", 34_500), Media("audio")),
        reply_to=Quoted("shall I?"),
    )
    assert message_text(update, key_of(update, "main", ACCOUNT)) == (
        '(In reply to "shall I?")\nlook\n[image: cat.png, image/png, 34 kB]\n[audio]'
    )


def test_names_sizes_and_quotes_are_shortened() -> None:
    long = Update(*("telegram", "bot", "1", "-7", ChatType.THREAD, "42", "x", "9"), user_name="A\nb " + "c" * 200)
    words = message_text(long, key_of(long, "main", ACCOUNT))
    assert words == f"A b {'c' * 76}: x"
    nameless = Update(*("telegram", "bot", "1", "-7", ChatType.THREAD, "42", "x", "9"))
    assert message_text(nameless, key_of(nameless, "main", ACCOUNT)) == "42: x"
    sizes = tuple(Media("file", size=size) for size in (0, 1, 1_000_000, None))
    sent = Update(*("telegram", "bot", "1", "42", ChatType.DM, "42", ""), media=sizes)
    assert message_text(sent, key_of(sent, "main", ACCOUNT)) == "[file]\n[file: 1 kB]\n[file: 1.0 MB]\n[file]"
    quoted = Update(*("telegram", "bot", "1", "42", ChatType.DM, "42", "yes"), reply_to=Quoted("q" * 1000))
    assert len(message_text(quoted, key_of(quoted, "main", ACCOUNT))) < 400


def test_a_blank_message_has_an_empty_text() -> None:
    for text, quoted in (("", None), ("  \n", None), ("", Quoted("  "))):
        blank = Update(*("telegram", "bot", "1", "42", ChatType.DM, "42", text), reply_to=quoted)
        assert message_text(blank, key_of(blank, "main", ACCOUNT)) == ""
        in_thread = Update(*("telegram", "bot", "1", "-7", ChatType.THREAD, "42", text, "9"), reply_to=quoted)
        assert message_text(in_thread, key_of(in_thread, "main", ACCOUNT)) == ""


def test_lone_surrogates_are_replaced() -> None:
    half = Update(
        *("telegram", "bot", "1", "-7", ChatType.THREAD, "42", "a\ud83d", "9"),
        user_name="n\ud83d",
        media=(Media("file", "f\ud83d", "m\ud83d"),),
        reply_to=Quoted("q\ud83d"),
    )
    message_text(half, key_of(half, "main", ACCOUNT)).encode()


def test_a_channel_is_routed_as_a_group_and_an_empty_thread_is_ignored() -> None:
    channel = Update(*("telegram", "bot", "1", "-7", ChatType.CHANNEL, "42", "x", ""))
    assert str(key_of(channel, "main", ACCOUNT)) == "agent:main:telegram:channel:-7::42"
    shared = key_of(channel, "main", PlatformAccount("telegram", groups="shared"))
    assert str(shared) == "agent:main:telegram:channel:-7"
    assert is_shared(shared)
    assert owner_of(shared, "anna") == "group:telegram:-7"
    assert not is_shared(key_of(DM, "main", PlatformAccount("telegram", groups="shared")))


def test_groups_with_colons_in_their_ids_have_different_owners() -> None:
    one = SessionKey("main", "fake", ChatType.THREAD, "a:b")
    other = SessionKey("main", "fake", ChatType.THREAD, "a", "b")
    assert owner_of(one, "x") != owner_of(other, "x")
