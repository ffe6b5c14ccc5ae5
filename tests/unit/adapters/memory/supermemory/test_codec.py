"""Ids of Supermemory's documents and namespaces."""

from __future__ import annotations

from everthread.adapters.memory.supermemory.codec import namespace, note_document_id, turn_id

ANN, BOB = "telegram:1 ann", "telegram:1-ann"


def test_ids_fit_and_similar_owners_have_separate_namespaces() -> None:
    assert namespace("everthread", ANN) != namespace("everthread", BOB)
    assert len(namespace("p" * 300, "o" * 300)) <= 100
    assert len(turn_id("s" * 300, 999_999)) <= 100
    assert len(note_document_id("n" * 300)) <= 100
