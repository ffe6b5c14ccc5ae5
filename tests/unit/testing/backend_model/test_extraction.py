"""Stub replies to the extraction requests of memory back ends."""

from __future__ import annotations

import ast
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.backend_model.extraction import entity_program, facts_in, reply_to, smallest_value

SAID = 'user: My dog\'s name is "Biscuit"\nassistant: What a name.\nuser: I live in Porto'


FACTS = ['My dog\'s name is "Biscuit"', "I live in Porto"]


def test_user_messages_are_extracted_in_the_format_of_each_back_end() -> None:
    hindsight = f"Extract facts from the following chunk.\n\nChunk: 1/1\nContext: none\n\nContent:\n{SAID}"
    found = json.loads(reply_to(["rules", hindsight]))["facts"]
    assert [fact["what"] for fact in found] == FACTS
    assert all({"when", "where", "who", "why", "fact_type"} <= set(fact) for fact in found)
    mem0 = f"## Existing Memories\n[]\n\n## New Messages\n{SAID}\n\n## Observation Date\n2026-11-16\n\n# Output:"
    assert [one["text"] for one in json.loads(reply_to(["rules", mem0]))["memory"]] == FACTS
    viking = f"## Conversation History\n**Session Time:** now\nrelative\n\n{SAID}\n\nAfter exploring, output"
    written = ast.parse(reply_to(["Return Python; end with sdk.commit().", viking]))
    calls = [node.value for node in written.body if isinstance(node, ast.Expr)]
    names = [call.func.attr for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)]
    assert names == ["create_entities", "create_entities", "commit"]
    arguments = [
        {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        for call in calls
        if isinstance(call, ast.Call)
    ]
    assert [given["content"] for given in arguments[:2]] == FACTS
    assert len({given["name"] for given in arguments[:2]}) == 2


def test_numbered_messages_become_events_with_their_message_number() -> None:
    said = '[0][user][user]: I like "tea"\nand coffee\n[1][assistant][assistant]: Noted\n[2][user][user]: I like "tea"'
    prompt = f"## Conversation History\n**Session Time:** now\nrelative\n\n{said}\n\nAfter exploring, output"
    calls = [
        node.value for node in ast.parse(reply_to(["end with sdk.commit()", prompt])).body if isinstance(node, ast.Expr)
    ]
    events = [
        {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "sdk.create_events"
    ]
    assert [(event["summary"], event["ranges"]) for event in events] == [('I like "tea"', "0"), ("and coffee", "0")]
    assert ast.unparse(calls[-1]) == "sdk.commit()"


def test_a_reply_without_facts_has_the_same_format() -> None:
    assert reply_to(["end with sdk.commit()", "## Conversation History\nx\n\nassistant: hm"]) == "sdk.commit()"
    assert json.loads(reply_to(["## New Messages\nassistant: hm\n\n# Output:"])) == {"memory": []}


@given(st.lists(st.text(min_size=1).filter(lambda text: len(text.splitlines()) == 1 and text.strip())))
def test_a_program_contains_the_facts_word_for_word(facts: list[str]) -> None:
    body = ast.parse(entity_program(facts)).body
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    contents = [ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "content"]
    assert contents == facts


def test_messages_in_json_are_parsed() -> None:
    messages = [{"role": "user", "content": "I like tea"}, {"role": "assistant", "content": "Noted"}]
    assert facts_in(json.dumps(messages)) == ["I like tea"]
    assert facts_in("[0][user]: I like tea\nand coffee\n[1][assistant]: Noted") == ["I like tea", "and coffee"]


def test_a_reply_matches_its_schema() -> None:
    schema: dict[str, Any] = {
        "$defs": {"Kind": {"enum": ["a", "b"]}},
        "type": "object",
        "required": ["kind", "count", "items"],
        "properties": {
            "kind": {"$ref": "#/$defs/Kind"},
            "count": {"type": "integer", "minimum": 2},
            "items": {"type": "array"},
            "more": {"type": "string"},
        },
    }
    assert smallest_value(schema) == {"kind": "a", "count": 2, "items": []}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(reply_to(["hello"], wanted)) == smallest_value(schema)


def test_each_fact_is_its_own_conclusion() -> None:
    ids = [f"{n}0000000-0000-0000-0000-000000000000" for n in (1, 2)]
    facts = f"[{ids[0]}] I keep bees | When: now (mentioned_at=2025-01-01)\n[{ids[1]}] I sell honey"
    asked = f"## MISSION\n\nTrack.\n\n## INPUT\n\n### New facts\n{facts}\n\n### Existing observations\n[]"
    creates = json.loads(reply_to(["You are a memory.", asked], {"type": "json_object"}))["creates"]
    assert [one["source_fact_ids"] for one in creates] == [[ids[0]], [ids[1]]]
    assert [one["text"].partition(": ")[2] for one in creates] == ["I keep bees | When: now", "I sell honey"]
