"""Entries for Mem0, and duplicates among its memories."""

from __future__ import annotations

from typing import Any

from everthread.adapters.memory.mem0.codec import Mem0Memory, duplicate_ids, recall_items, turn_entry


def remembered(id: str, entry: str, request: str, session: str = "s1", **more: Any) -> Mem0Memory:
    about = {"kind": "turn", "session": session, "entry": entry, "request": request, **more}
    return Mem0Memory(id, f"words of {id}", about)


def test_an_empty_side_is_no_message() -> None:
    entry = turn_entry("s1", 3, "hello", "  ", 1.0, infer=True, attempt=1)
    assert entry.messages == (("user", "hello"),)
    assert entry.metadata == {"kind": "turn", "session": "s1", "entry": "turn:3", "turn": 3, "at": 1.0}


def test_memories_of_a_repeated_request_are_duplicates() -> None:
    found = [
        remembered("a", "turn:1", "first"),
        remembered("b", "turn:1", "first"),
        remembered("c", "turn:1", "second"),
        remembered("d", "turn:1", "third", session="s2"),
        Mem0Memory("e", "somebody else's", None),
    ]
    assert duplicate_ids(found) == ("c",)
    assert [item.text for item in recall_items(found, 10)] == [
        "words of a",
        "words of b",
        "words of d",
        "somebody else's",
    ]
