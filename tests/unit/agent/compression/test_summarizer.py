"""The request to the summarizing model, and its answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.compression.summarizer import SECTIONS, join_into_pieces, parse_summary, request_text
from everthread.agent.model_call import bytes_of
from everthread.domain.errors import NotCompressed


@given(st.lists(st.text(max_size=200), max_size=20), st.integers(500, 2_000))
def test_pieces_are_complete_and_limited_in_size(texts: list[str], bytes_max: int) -> None:
    pieces = join_into_pieces(texts, bytes_max)
    assert all(bytes_of(piece) <= bytes_max + 2 for piece in pieces)
    assert "\n\n".join(pieces) == "\n\n".join(texts) or any(bytes_of(text) > bytes_max for text in texts)


def test_a_summary_has_its_sections_in_a_fixed_order() -> None:
    answer = "Sure!\n\n### facts:\n- Bruno is a dog\n\n## GOAL\n- a walk\n## Weather\nrain\n## Facts ##\n- he is old"
    assert parse_summary(answer) == (
        "## Goal\n- a walk\n\n## Decisions\n- none\n\n## Open threads\n- none\n\n"
        "## Facts\n- Bruno is a dog\n- he is old\n\n## Files and identifiers\n- none"
    )
    assert parse_summary(parse_summary(answer)) == parse_summary(answer)


@pytest.mark.parametrize("garbage", ["", "   ", "I can't help with that.", "# Weather\nrain", "## Goal", "#" * 5000])
def test_an_answer_without_a_section_is_not_a_summary(garbage: str) -> None:
    with pytest.raises(NotCompressed):
        parse_summary(garbage)


@given(st.text(max_size=500))
def test_any_answer_is_parsed_or_rejected(answer: str) -> None:
    try:
        summary = parse_summary(answer)
    except NotCompressed:
        return
    assert [line[3:] for line in summary.splitlines() if line[3:] in SECTIONS and line.startswith("## ")]


def test_the_request_names_every_section_the_previous_summary_and_the_hints() -> None:
    text = request_text("OLD SUMMARY", "TALK", ["HINT"], "FOCUS")
    assert all(f"## {name}" in text for name in SECTIONS)
    assert all(part in text for part in ("OLD SUMMARY", "TALK", "HINT", "FOCUS"))
