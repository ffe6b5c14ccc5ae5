import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from everthread.domain.errors import BadKey
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    KEY_CHARS_MAX,
    Cause,
    ChatType,
    Message,
    Role,
    Session,
    SessionKey,
    SessionKind,
    Turn,
    TurnStatus,
)

parts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(parts, parts, st.sampled_from(list(ChatType)), parts, st.none() | parts, st.none() | parts)
@example("main", "matrix", ChatType.GROUP, "!room:server.org", "$thread:server.org", "@user:server.org")
@example("main", "a:b", ChatType.DM, "%3A", "::", "%")
@example("main", "x", ChatType.THREAD, "-100123", None, "7")
@example("main", "x", ChatType.DM, "\n\0 /?#", "\u200b", "👩‍👩‍👧")
def test_a_key_round_trips_as_text(
    profile: str, platform: str, chat_type: ChatType, chat: str, thread: str | None, user: str | None
) -> None:
    key = SessionKey(profile, platform, chat_type, chat, thread, user)
    if len(str(key)) <= KEY_CHARS_MAX:
        assert SessionKey.parse(str(key)) == key
    # A text has exactly six separators, so no part can be read as two.
    assert str(key).count(":") == 4 + (thread is not None or user is not None) + (user is not None)


@given(
    st.tuples(parts, parts, st.sampled_from(list(ChatType)), parts, st.none() | parts, st.none() | parts),
    st.tuples(parts, parts, st.sampled_from(list(ChatType)), parts, st.none() | parts, st.none() | parts),
)
def test_different_keys_have_different_texts(one: tuple, other: tuple) -> None:
    assert (SessionKey(*one) == SessionKey(*other)) == (str(SessionKey(*one)) == str(SessionKey(*other)))
    assert (SessionKey(*one) != SessionKey(*other)) == (str(SessionKey(*one)) != str(SessionKey(*other)))


def test_equal_keys_are_equal_before_and_after_formatting() -> None:
    key, same = SessionKey.parse("agent:main:telegram:dm:42"), SessionKey.parse("agent:main:telegram:dm:42")
    assert str(key) == "agent:main:telegram:dm:42"
    assert key == same
    assert not key != same
    assert len({key, same}) == 1
    assert "42" in repr(key)
    assert str(key) not in repr(key)


def test_a_key_derived_from_another_has_its_own_text() -> None:
    key = SessionKey.parse("agent:main:telegram:dm:42")
    assert (str(key), str(replace(key, chat="43"))) == ("agent:main:telegram:dm:42", "agent:main:telegram:dm:43")


@pytest.mark.parametrize(
    ("text", "thread", "user"),
    [
        ("agent:main:telegram:dm:42", None, None),
        ("agent:main:telegram:group:-100:7", "7", None),
        ("agent:main:telegram:group:-100::9", None, "9"),
        ("agent:main:telegram:group:-100:7:9", "7", "9"),
    ],
)
def test_a_key_is_formatted_as_it_is_parsed(text: str, thread: str | None, user: str | None) -> None:
    key = SessionKey.parse(text)
    assert (key.thread, key.user) == (thread, user)
    assert str(key) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent",
        "agent:main:telegram:dm",
        "main:main:telegram:dm:42",
        "AGENT:main:telegram:dm:42",
        "agent::telegram:dm:42",
        "agent:main::dm:42",
        "agent:main:telegram:dm:",
        "agent:main:telegram:dm:42:7:9:extra",
        "agent:main:telegram:dm:" + "4" * KEY_CHARS_MAX,
    ],
)
def test_an_invalid_key_is_refused_with_the_expected_format(text: str) -> None:
    with pytest.raises(BadKey, match="expected agent:PROFILE:PLATFORM") as caught:
        SessionKey.parse(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("chat_type", ["", "DM", "private", "dm "])
def test_an_unknown_chat_type_is_refused_with_the_known_ones(chat_type: str) -> None:
    with pytest.raises(BadKey):
        SessionKey.parse(f"agent:main:telegram:{chat_type}:42")


def test_the_longest_key_is_read_and_one_more_character_is_not() -> None:
    start = "agent:main:telegram:dm:"
    longest = start + "4" * (KEY_CHARS_MAX - len(start))
    assert str(SessionKey.parse(longest)) == longest
    with pytest.raises(BadKey):
        SessionKey.parse(longest + "4")


def test_only_chats_and_notes_reach_providers() -> None:
    assert {kind for kind in SessionKind if kind.remembered} == {SessionKind.CHAT, SessionKind.NOTES}


def test_only_the_message_and_the_answer_of_a_turn_are_remembered() -> None:
    assert {s for s in TurnStatus if s.remembered} == {TurnStatus.DONE, TurnStatus.INTERRUPTED, TurnStatus.LATE}


def test_open_close_and_forget_events_need_no_close() -> None:
    clean = {kind for kind in EntryKind if not kind.dirties}
    assert clean == {EntryKind.OPENED, EntryKind.CLOSE, EntryKind.FORGET}


def test_a_session_is_dirty_until_a_close_covers_it() -> None:
    def session(dirty_seq: int, closed_seq: int) -> Session:
        key = SessionKey.parse("agent:main:cli:dm:1")
        return Session("s", "me", key, SessionKind.CHAT, Cause.NEW, 0.0, dirty_seq=dirty_seq, closed_seq=closed_seq)

    assert not session(0, 0).dirty
    assert session(3, 2).dirty
    assert not session(3, 3).dirty
    assert session(3, 3).ended("new", 5.0).generation == 1


def test_a_turn_is_formatted_as_a_message_and_an_answer() -> None:
    messages = (
        Message(Role.USER, "one"),
        Message(Role.ASSISTANT, ""),
        Message(Role.TOOL, "a result"),
        Message(Role.ASSISTANT, "two"),
        Message(Role.USER, "steer"),
        Message(Role.ASSISTANT, "three"),
    )
    turn = Turn("s", 1, "t", TurnStatus.DONE, 0.0, messages)
    assert (turn.user_text, turn.assistant_text) == ("one\nsteer", "two\nthree")
