"""Ids and operations of Hindsight documents, and the origin of recalled facts."""

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
def test_the_prefix_of_a_session_matches_only_its_own_turns(one: str, other: str, number: int) -> None:
    assert turn_id(other, number).startswith(session_prefix(one)) == (one == other)
    assert not note_document(one, other, 1, "user", "x", None).id.startswith(session_prefix(one))


@given(SESSIONS, NUMBERS)
def test_the_origin_of_a_fact_is_parsed_from_its_metadata_or_its_id(session: str, number: int) -> None:
    turn = turn_document(session, number, "hello", "hi", 1.0)
    for metadata in (turn.signed("b", 0).metadata, {}):
        found = fact_origin(turn.id, metadata)
        assert (found.kind, found.session_id, found.turn) == (TURN, session, number)
    assert fact_origin(opened_document(session, "parent").id, {}).kind == OPENED
    assert fact_origin(delegation_document(session, 3, "do", "done", "").id, {}).kind == WORK
    assert fact_origin(note_document(session, "n1", 1, "user", "x", None).id, {}).kind == NOTE


def test_an_operation_id_depends_on_bank_document_content_and_replay() -> None:
    turn = turn_document("s1", 1, "hello", "hi", 1.0)
    assert said(turn) == said(turn_document("s1", 1, "hello", "hi", 1.0)) == said(turn.signed("b", 0))
    others = [
        turn_document("s1", 1, "hello", "ho", 1.0),
        turn_document("s1", 2, "hello", "hi", 1.0),
        turn_document("s2", 1, "hello", "hi", 1.0),
    ]
    assert len({said(turn), said(turn, replay=1), said(turn, bank="c"), *map(said, others)}) == 6


def test_null_characters_and_empty_sides_are_left_out() -> None:
    assert turn_document("s1", 1, "a\0b", " ", None).content == "user: ab"
    assert "timestamp" not in turn_document("s1", 1, "a", "", None).item()


def test_a_conclusion_has_the_origin_that_its_facts_share() -> None:
    one, again, other = FactOrigin(TURN, "s", 1), FactOrigin(TURN, "s", 2), FactOrigin(TURN, "t", 1)
    assert common_origin([one, one]) == one
    assert common_origin([one, again]) == FactOrigin(session_id="s")
    assert common_origin([one, other]) == FactOrigin()
    assert common_origin([]) == FactOrigin()


def test_a_conclusion_has_no_sources_if_one_of_its_facts_is_missing() -> None:
    fact, note = RecalledFact("I keep bees", "s/0001"), RecalledFact("keeps bees", "note/n")
    concluded = RecalledFact("It is known", source_fact_ids=["a", "b"])
    assert RecallResponse([fact]).sources(fact) == (fact,)
    assert RecallResponse([concluded], {"a": fact, "b": note}).sources(concluded) == (fact, note)
    assert RecallResponse([concluded], {"a": fact}).sources(concluded) == ()
    assert RecallResponse([concluded]).sources(RecalledFact("It is known")) == ()
