"""Sessions, tags and messages in the format of OpenViking, and the origin of its memories."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from everthread.adapters.memory.openviking.codec import (
    TAG_CHARS_MAX,
    EntryMark,
    SessionMessage,
    SessionTags,
    contains_text,
    copy_name,
    entry_messages,
    find_mark,
    grep_pattern,
    message_grep_pattern,
    note_tags,
    origin_tags,
    original_name,
    parse_message,
    parse_origin,
    parse_tags,
    parse_version,
    session_name,
    source_turn,
    without_duplicates,
)
from everthread.adapters.memory.openviking.provider import OpenViking
from everthread.domain.errors import BadConfig

NUMBERS = st.integers(0, 10**15)
IDS = st.text(min_size=1, max_size=30)


def line(seq: int, text: str = "x", *, turn: int = 0, role: str = "user", part: int = 0) -> SessionMessage:
    return SessionMessage(role, text, EntryMark(seq, "turn", turn or seq, part))


@given(NUMBERS, st.sampled_from(["turn", "work"]), NUMBERS, st.integers(0, 9))
def test_a_mark_is_parsed_as_written(seq: int, kind: str, turn: int, part: int) -> None:
    mark = EntryMark(seq, kind, turn, part)
    assert find_mark(["somebody-elses", str(mark)]) == mark
    assert find_mark(["somebody-elses"]) is None
    assert find_mark(None) is None


@given(IDS, st.none() | NUMBERS)
def test_tags_identify_session_and_turn_although_the_server_lowercases_them(session: str, turn: int | None) -> None:
    tags = origin_tags(session, turn)
    assert all(tag.count("=") == 1 and tag == tag.lower() for tag in tags)
    # A tag has at most 200 characters, and an escaped byte takes three of them.
    is_told = len(session.encode()) * 3 <= TAG_CHARS_MAX
    found, its_turn = parse_origin(tag.lower() for tag in tags)
    assert found == session if is_told else found in (session, "")
    assert its_turn == turn
    assert parse_origin(["memory_type=events"]) == ("", None)
    assert parse_version(note_tags(session, "n1", 7)) == 7


@given(
    IDS | st.just(""),
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3),
    st.lists(NUMBERS, max_size=3),
    NUMBERS,
    st.booleans(),
)
def test_the_state_of_a_session_is_parsed_from_its_tags(
    parent: str, covered: list[tuple[int, int]], missing: list[int], settled: int, partial: bool
) -> None:
    known = SessionTags(parent, tuple(covered), tuple(missing), settled, partial)
    assert parse_tags(tag.lower() for tag in known.tags) == known


def test_the_delivered_ranges_are_exact() -> None:
    known = SessionTags().covering([line(10), line(14)])
    assert [seq for seq in range(1, 20) if known.covers(seq)] == [10, 11, 12, 13, 14]
    known = known.covering([line(17)]).covering_through(18)
    assert known.covered == ((10, 18),)
    # Deliver the beginning later, in pieces: the range between is missing until it is delivered.
    known = known.covering([line(2), line(4)]).covering_through(5)
    assert known.covered == ((2, 5), (10, 18))
    assert replace(known, missing=(3,)).covers(3) is False
    assert known.covering([line(7), line(9)]).covered == ((2, 18),)
    assert SessionTags().covering_through(5).covered == ()
    assert known.covering([SessionMessage("user", "somebody else's")]) == known


@given(st.integers(1, 20), st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9, unique=True), max_size=4))
def test_only_delivered_ranges_count_as_covered(first: int, streams: list[list[int]]) -> None:
    """The first delivery may begin in the middle of a log, later ones at its start; two entries a commit."""
    known, passed = SessionTags(), set[int]()
    for number, stream in enumerate(streams):
        begin = first if number == 0 else 1
        said = [seq for seq in sorted(stream) if seq >= begin and not known.covers(seq)]
        for place in range(0, len(said), 2):
            known = known.covering([line(seq) for seq in said[place : place + 2]])
            passed |= set(range(begin, said[place : place + 2][-1] + 1))
            assert {seq for seq in range(40) if known.covers(seq)} <= passed
        assert all(known.covers(seq) for seq in said)


def test_an_entry_has_a_message_for_each_side_with_text() -> None:
    lines = entry_messages((("user", "hello"), ("assistant", " ")), seq=3, kind="turn", turn=2, at=0.0)
    assert lines == (SessionMessage("user", "hello", EntryMark(3, "turn", 2, 0), "1970-01-01T00:00:00+00:00"),)
    assert entry_messages((("user", ""),), seq=3, kind="turn", turn=2, at=None) == ()


def test_duplicates_are_removed_and_messages_of_other_clients_stay() -> None:
    stranger = SessionMessage("user", "hello")
    lines = (line(1), stranger, line(2), line(1, "said late"), stranger)
    assert without_duplicates(lines) == (line(1), stranger, line(2), stranger)


def test_a_memory_names_a_turn_only_if_it_is_unambiguous() -> None:
    two = (line(1, "I keep bees. And more.", turn=1), line(2, "I sell honey", turn=2), line(3, "I sell honey", turn=3))
    assert source_turn("whatever", two[:1]) == 1
    assert source_turn("whatever", two) is None
    assert source_turn("# Summary\nbees\n# ChatLog:\n**user**: I keep bees....", two) == 1
    assert source_turn("**user**: I sell honey", two) is None
    assert source_turn("**user**: nobody said that", two) is None
    # The memory may come from the message of another client.
    assert source_turn("whatever", (*two[:1], SessionMessage("user", "hello"))) is None


def test_a_message_is_parsed_from_the_format_of_the_server() -> None:
    parts, sources = '[{"type":"text","text":"a\\u2028b"}]', '["everthread/1/turn/1/0"]'
    row = f'{{"id":"m","role":"user","parts":{parts},"source_message_ids":{sources}}}'
    assert parse_message(row) == SessionMessage("user", "a\u2028b", EntryMark(1, "turn", 1, 0))
    assert parse_message('{"role":') is None
    assert parse_message(row.replace("1/turn", "x/turn")) == SessionMessage("user", "a\u2028b")


def test_session_names_are_distinct_and_a_copy_leads_to_its_original() -> None:
    assert session_name("a/b") != session_name("a_b")
    assert original_name(copy_name(session_name("s:1"))) == original_name(session_name("s:1")) == session_name("s:1")
    # No session name collides with the name of a copy.
    assert original_name(session_name("x__spare")) == session_name("x__spare")


def test_the_grep_pattern_matches_the_stored_form_of_the_text() -> None:
    assert grep_pattern('the "code" is 4711, yes') == "is 4711"
    assert grep_pattern("Grüße an 你好") == "Grüße an 你好"
    assert grep_pattern("!?") == "."
    said = 'keep "bees" [in\nAarhus'
    row = json.dumps({"text": f"I {said} 😀"}, ensure_ascii=False)
    assert re.search(message_grep_pattern(said), row)
    assert contains_text(row, said)
    assert not contains_text(row, "keep bees")


async def test_an_invalid_account_is_refused_at_once() -> None:
    with pytest.raises(BadConfig, match="must begin"):
        await OpenViking().initialize(account="_hidden")
