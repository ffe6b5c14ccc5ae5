"""What Hindsight is given: ids that nothing else can have, and operations that stand for the very words."""

from hypothesis import given
from hypothesis import strategies as st

from everthread.adapters.memory.hindsight.client import Found, Recalled
from everthread.adapters.memory.hindsight.codec import (
    NOTE,
    OPENED,
    TURN,
    WORK,
    Document,
    Origin,
    all_of,
    common,
    note_of,
    opened_of,
    origin,
    turn_id,
    turn_of,
    work_of,
)

SESSIONS = st.text(min_size=1, max_size=20) | st.sampled_from(["note", "%6eote", "a/b", "a%2Fb", "notes:me", "a"])
NUMBERS = st.integers(1, 10**9)


def said(document: Document, replay: int = 0, bank: str = "b") -> str:
    return document.signed(bank, replay).operation


@given(SESSIONS, NUMBERS, SESSIONS, NUMBERS)
def test_no_two_turns_share_a_document(one: str, number: int, other: str, another: int) -> None:
    assert (turn_id(one, number) == turn_id(other, another)) == ((one, number) == (other, another))


@given(SESSIONS, SESSIONS, NUMBERS)
def test_what_a_session_is_forgotten_by_is_no_others(one: str, other: str, number: int) -> None:
    assert turn_id(other, number).startswith(all_of(one)) == (one == other)
    assert not note_of(one, other, 1, "user", "x", None).id.startswith(all_of(one))


@given(SESSIONS, NUMBERS)
def test_where_it_comes_from_is_told_by_the_metadata_and_by_the_id_alone(session: str, number: int) -> None:
    turn = turn_of(session, number, "hello", "hi", 1.0)
    for metadata in (turn.signed("b", 0).metadata, {}):
        found = origin(turn.id, metadata)
        assert (found.kind, found.session_id, found.turn) == (TURN, session, number)
    assert origin(opened_of(session, "parent").id, {}).kind == OPENED
    assert origin(work_of(session, 3, "do", "done", "").id, {}).kind == WORK
    assert origin(note_of(session, "n1", 1, "user", "x", None).id, {}).kind == NOTE


def test_an_operation_stands_for_a_bank_a_document_its_words_and_a_replay() -> None:
    turn = turn_of("s1", 1, "hello", "hi", 1.0)
    assert said(turn) == said(turn_of("s1", 1, "hello", "hi", 1.0)) == said(turn.signed("b", 0))
    others = [
        turn_of("s1", 1, "hello", "ho", 1.0),
        turn_of("s1", 2, "hello", "hi", 1.0),
        turn_of("s2", 1, "hello", "hi", 1.0),
    ]
    assert len({said(turn), said(turn, replay=1), said(turn, bank="c"), *map(said, others)}) == 6


def test_a_character_that_no_database_takes_is_left_out_and_a_silent_side_too() -> None:
    assert turn_of("s1", 1, "a\0b", " ", None).content == "user: ab"
    assert "timestamp" not in turn_of("s1", 1, "a", "", None).item()


def test_what_is_concluded_from_several_is_of_the_session_or_turn_that_they_share() -> None:
    one, again, other = Origin(TURN, "s", 1), Origin(TURN, "s", 2), Origin(TURN, "t", 1)
    assert common([one, one]) == one
    assert common([one, again]) == Origin(session_id="s")
    assert common([one, other]) == Origin()
    assert common([]) == Origin()


def test_a_conclusion_is_known_from_its_facts_and_from_none_if_one_of_them_is_not_told() -> None:
    fact, note = Found("I keep bees", "s/0001"), Found("keeps bees", "note/n")
    concluded = Found("It is known", source_fact_ids=["a", "b"])
    assert Recalled([fact]).behind(fact) == (fact,)
    assert Recalled([concluded], {"a": fact, "b": note}).behind(concluded) == (fact, note)
    assert Recalled([concluded], {"a": fact}).behind(concluded) == ()
    assert Recalled([concluded]).behind(Found("It is known")) == ()
