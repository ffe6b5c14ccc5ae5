"""A plugin's text as recall items."""

from __future__ import annotations

import pytest

from everthread.adapters.memory.hermes_bridge.codec import recall_items

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        ("## Memory\n- [0.5] keeps bees\n- paints them\n  yellow\n", ["keeps bees", "paints them\nyellow"]),
        ("# A\nThe user keeps bees.\nIn Aarhus.\n\nAnd a dog.", ["The user keeps bees.\nIn Aarhus.", "And a dog."]),
        ("- [x] done\n* [1] sure", ["[x] done", "sure"]),
        ("- one\n\n  # more\n  - of it\n- two\n\nthree", ["one\n# more\n- of it", "two", "three"]),
    ],
)
def test_a_block_of_text_is_read_as_single_memories(text: str, items: list[str]) -> None:
    assert [item.text for item in recall_items(text, 10)] == items
    assert [item.text for item in recall_items(text, 1)] == items[:1]
