"""What rows of Hermes's mean to us: messages, turns, places, guests."""

from __future__ import annotations

import json

import pytest
from tests.hermes_rows import START

from everthread.domain.model import Role
from everthread.hermes_import.rows import MessageRow, calls_of, line_of, text_of, time_of

# --- Messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ("plain", "plain"),
        (
            '\0json:[{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]',
            "Look\n[image]",
        ),
        ('\0json:{"type": "text", "text": "one"}', "one"),
        ('\0json:["a", 7, {"type": "input_audio"}, {"odd": 1}]', 'a\n7\n[audio]\n{"odd": 1}'),
        ("\0json:[not json", "json:[not json"),
        ('\0json:"' + "[" * 100_000, 'json:"' + "[" * 100_000),
        ("half \ud800 character", "half ? character"),
    ],
)
def test_content_is_decoded_and_undecodable_content_is_kept(stored: str, meant: str) -> None:
    assert text_of(stored) == meant


def test_tool_calls_of_known_shapes_are_read_and_others_kept_as_text() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    flat = {"call_id": "c2", "name": "look", "arguments": {"a": 2}}
    found = calls_of(json.dumps([call, flat, 7, {"function": {}}]))
    assert [(each.id, each.name, each.arguments) for each in found] == [
        ("c1", "look", '{"a": 1}'),
        ("c2", "look", '{"a": 2}'),
    ]
    assert calls_of(json.dumps(json.dumps([call])))[0].id == "c1"
    line = line_of(MessageRow(1, "assistant", "Hm.", START, tool_calls="{broken"))
    assert (line.tool_calls, line.content) == ((), "Hm.\n{broken")


def test_tool_results_keep_their_call_and_answers_their_reasoning() -> None:
    answer = line_of(MessageRow(1, "tool", "42", START, tool_call_id="c1", tool_name="look"))
    assert (answer.role, answer.tool_call_id, answer.name) == (Role.TOOL, "c1", "look")
    thought = line_of(MessageRow(2, "assistant", "It is 42.", START, reasoning="I looked."))
    assert thought.reasoning == "I looked."


@pytest.mark.parametrize("value", ["soon", None, float("nan"), float("inf"), -1.0, 1e300])
def test_an_invalid_time_is_replaced(value: object) -> None:
    assert time_of(value, 5.0) == 5.0
