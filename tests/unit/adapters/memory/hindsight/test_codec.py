"""What Hindsight is given: ids that nothing else can have, and operations that stand for the very words."""

from hypothesis import given
from hypothesis import strategies as st

from everthread.adapters.memory.hindsight.client import RecalledFact, RecallResponse
from everthread.adapters.memory.hindsight.codec import (
    NOTE,
    OPENED,
    TURN,
    WORK,
    FactOrigin,
    HindsightDocument,
    common_origin,
    delegation_document,
    fact_origin,
    note_document,
    opened_document,
    session_prefix,
    turn_document,
    turn_id,
)

SESSIONS = st.text(min_size=1, max_size=20) | st.sampled_from(["note", "%6eote", "a/b", "a%2Fb", "notes:me", "a"])
NUMBERS = st.integers(1, 10**9)


def said(document: HindsightDocument, replay: int = 0, bank: str = "b") -> str:
    return document.signed(bank, replay).operation


@given(SESSIONS, NUMBERS, SESSIONS, NUMBERS)
def test_no_two_turns_share_a_document(one: str, number: int, other: str, another: int) -> None:
    assert (turn_id(one, number) == turn_id(other, another)) == ((one, number) == (other, another))


@given(SESSIONS, SESSIONS, NUMBERS)
def test_what_a_session_is_forgotten_by_is_no_others(one: str, other: str, number: int) -> None:
    assert turn_id(other, number).startswith(session_prefix(one)) == (one == other)
    assert not note_document(one, other, 1, "user", "x", None).id.startswith(session_prefix(one))


@given(SESSIONS, NUMBERS)
def test_where_it_comes_from_is_told_by_the_metadata_and_by_the_id_alone(session: str, number: int) -> None:
    turn = turn_document(session, number, "hello", "hi", 1.0)
    for metadata in (turn.signed("b", 0).metadata, {}):
        found = fact_origin(turn.id, metadata)
        assert (found.kind, found.session_id, found.turn) == (TURN, session, number)
    assert fact_origin(opened_document(session, "parent").id, {}).kind == OPENED
    assert fact_origin(delegation_document(session, 3, "do", "done", "").id, {}).kind == WORK
    assert fact_origin(note_document(session, "n1", 1, "user", "x", None).id, {}).kind == NOTE


def test_an_operation_stands_for_a_bank_a_document_its_words_and_a_replay() -> None:
    turn = turn_document("s1", 1, "hello", "hi", 1.0)
    assert said(turn) == said(turn_document("s1", 1, "hello", "hi", 1.0)) == said(turn.signed("b", 0))
    others = [
        turn_document("s1", 1, "hello", "ho", 1.0),
        turn_document("s1", 2, "hello", "hi", 1.0),
        turn_document("s2", 1, "hello", "hi", 1.0),
    ]
    assert len({said(turn), said(turn, replay=1), said(turn, bank="c"), *map(said, others)}) == 6


def test_a_character_that_no_database_takes_is_left_out_and_a_silent_side_too() -> None:
    assert turn_document("s1", 1, "a\0b", " ", None).content == "user: ab"
    assert "timestamp" not in turn_document("s1", 1, "a", "", None).item()


def test_what_is_concluded_from_several_is_of_the_session_or_turn_that_they_share() -> None:
    one, again, other = FactOrigin(TURN, "s", 1), FactOrigin(TURN, "s", 2), FactOrigin(TURN, "t", 1)
    assert common_origin([one, one]) == one
    assert common_origin([one, again]) == FactOrigin(session_id="s")
    assert common_origin([one, other]) == FactOrigin()
    assert common_origin([]) == FactOrigin()


def test_a_conclusion_is_known_from_its_facts_and_from_none_if_one_of_them_is_not_told() -> None:
    fact, note = RecalledFact("I keep bees", "s/0001"), RecalledFact("keeps bees", "note/n")
    concluded = RecalledFact("It is known", source_fact_ids=["a", "b"])
    assert RecallResponse([fact]).sources(fact) == (fact,)
    assert RecallResponse([concluded], {"a": fact, "b": note}).sources(concluded) == (fact, note)
    assert RecallResponse([concluded], {"a": fact}).sources(concluded) == ()
    assert RecallResponse([concluded]).sources(RecalledFact("It is known")) == ()
