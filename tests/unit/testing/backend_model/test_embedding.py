"""Embeddings without a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.backend_model.embedding import embed


def likeness(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(embed(one), embed(other), strict=True))


def test_texts_that_share_words_have_similar_embeddings() -> None:
    assert likeness("I keep bees in Aarhus", "where are my bees kept, in Aarhus?") > 0.4
    assert abs(likeness("I keep bees in Aarhus", "the tax return of last year")) < 0.2
    assert likeness("Bees, in AARHUS", "bees in aarhus") == pytest.approx(1.0)


@given(st.text(), st.integers(8, 64))
def test_every_text_has_a_deterministic_unit_vector(text: str, dimensions: int) -> None:
    vector = embed(text, dimensions)
    assert (len(vector), vector) == (dimensions, embed(text, dimensions))
    assert sum(value * value for value in vector) == pytest.approx(1.0)
