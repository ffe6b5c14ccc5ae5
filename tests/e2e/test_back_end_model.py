"""The stub endpoint that memory back ends are given in tests: embeddings, extraction, faults."""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import struct
import sys
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.testing.backend_model.embedding import embed
from everthread.testing.backend_model.extraction import entity_program, facts_in, reply_to, smallest_value
from everthread.testing.backend_model.server import BackendModel

SAID = 'user: My dog\'s name is "Biscuit"\nassistant: What a name.\nuser: I live in Porto'
FACTS = ['My dog\'s name is "Biscuit"', "I live in Porto"]


def likeness(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(embed(one), embed(other), strict=True))


def test_texts_that_share_words_are_near_and_others_are_not() -> None:
    assert likeness("I keep bees in Aarhus", "where are my bees kept, in Aarhus?") > 0.4
    assert abs(likeness("I keep bees in Aarhus", "the tax return of last year")) < 0.2
    assert likeness("Bees, in AARHUS", "bees in aarhus") == pytest.approx(1.0)


@given(st.text(), st.integers(8, 64))
def test_every_text_has_a_vector_of_length_one_which_is_always_the_same(text: str, dimensions: int) -> None:
    vector = embed(text, dimensions)
    assert (len(vector), vector) == (dimensions, embed(text, dimensions))
    assert sum(value * value for value in vector) == pytest.approx(1.0)


def test_what_people_said_is_extracted_in_the_form_each_back_end_reads() -> None:
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


def test_numbered_messages_become_events_that_say_which_message_they_are_of() -> None:
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


def test_nothing_to_extract_is_an_empty_answer_in_the_same_form() -> None:
    assert reply_to(["end with sdk.commit()", "## Conversation History\nx\n\nassistant: hm"]) == "sdk.commit()"
    assert json.loads(reply_to(["## New Messages\nassistant: hm\n\n# Output:"])) == {"memory": []}


@given(st.lists(st.text(min_size=1).filter(lambda text: len(text.splitlines()) == 1 and text.strip())))
def test_a_program_says_the_facts_word_for_word_whatever_is_in_them(facts: list[str]) -> None:
    body = ast.parse(entity_program(facts)).body
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    contents = [ast.literal_eval(word.value) for call in calls for word in call.keywords if word.arg == "content"]
    assert contents == facts


def test_messages_that_come_as_json_are_read_as_such() -> None:
    messages = [{"role": "user", "content": "I like tea"}, {"role": "assistant", "content": "Noted"}]
    assert facts_in(json.dumps(messages)) == ["I like tea"]
    assert facts_in("[0][user]: I like tea\nand coffee\n[1][assistant]: Noted") == ["I like tea", "and coffee"]


def test_an_answer_that_must_fit_a_schema_fits_it() -> None:
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


async def post(url: str, body: dict[str, Any], timeout_s: float = 5.0) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s)) as client,
        client.post(url, json=body) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


async def test_embeddings_come_as_numbers_or_packed_one_for_each_text() -> None:
    async with BackendModel(dimensions=16) as model:
        url = f"{model.base_url}/embeddings"
        _, plain = await post(url, {"model": "m", "input": ["one", "two"]})
        assert [one["embedding"] for one in plain["data"]] == [embed("one", 16), embed("two", 16)]
        _, packed = await post(url, {"model": "m", "input": "one", "encoding_format": "base64", "dimensions": 32})
        raw = base64.b64decode(packed["data"][0]["embedding"])
        assert struct.unpack("<32f", raw) == pytest.approx(embed("one", 32), abs=1e-6)
        assert (await post(url, {"model": "m", "input": [[1, 2], [3]]}))[1]["data"][1]["embedding"] == embed("3", 16)
        assert (await post(url, {"model": "m"}))[0] == 400


async def test_chat_is_answered_whole_and_streamed_and_its_content_may_come_in_parts() -> None:
    async with BackendModel(lambda asked: f"heard {asked.texts[-1]}") as model:
        url = f"{model.base_url}/chat/completions"
        parts = [{"type": "text", "text": "hello"}]
        _, answer = await post(url, {"model": "m", "messages": [{"role": "user", "content": parts}]})
        assert answer["choices"][0]["message"]["content"] == "heard hello"
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "you"}]}
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as streamed:
            text = await streamed.text()
        said = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert "".join(one["choices"][0]["delta"].get("content") or "" for one in said if one["choices"]) == "heard you"


async def test_faults_are_ordered_and_end() -> None:
    async with BackendModel() as model:
        url, body = f"{model.base_url}/embeddings", {"input": "x"}
        model.fail_next(2, 503)
        assert [(await post(url, body))[0] for _ in range(3)] == [503, 503, 200]
        model.hang()
        with pytest.raises(TimeoutError):
            await post(url, body, timeout_s=0.1)
        waiting = asyncio.ensure_future(post(url, body))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        model.heal()
        assert (await waiting)[0] == 200
        model.delay(0.2)
        began = asyncio.get_running_loop().time()
        await post(url, body)
        assert asyncio.get_running_loop().time() - began >= 0.2
        assert (model.failed, model.asked["/v1/embeddings"]) == (2, 6)


async def test_a_word_can_be_refused_and_everything_else_is_answered() -> None:
    async with BackendModel() as model:
        url = f"{model.base_url}/embeddings"
        model.refuse("hemlock")
        assert [(await post(url, {"input": text}))[0] for text in ("hemlock", "bees", "of hemlock")] == [500, 200, 500]
        model.heal()
        assert (await post(url, {"input": "hemlock"}))[0] == 200


def test_what_is_to_be_concluded_from_facts_is_each_of_them() -> None:
    ids = [f"{n}0000000-0000-0000-0000-000000000000" for n in (1, 2)]
    facts = f"[{ids[0]}] I keep bees | When: now (mentioned_at=2025-01-01)\n[{ids[1]}] I sell honey"
    asked = f"## MISSION\n\nTrack.\n\n## INPUT\n\n### New facts\n{facts}\n\n### Existing observations\n[]"
    creates = json.loads(reply_to(["You are a memory.", asked], {"type": "json_object"}))["creates"]
    assert [one["source_fact_ids"] for one in creates] == [[ids[0]], [ids[1]]]
    assert [one["text"].partition(": ")[2] for one in creates] == ["I keep bees | When: now", "I sell honey"]


async def test_a_process_is_told_over_http() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everthread.testing.backend_model.server", "--dimensions", "8"),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        root = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        assert (await post(f"{root}/faults", {"fail_next": 1, "status": 429}))[0] == 200
        assert (await post(f"{root}/v1/embeddings", {"input": "x"}))[0] == 429
        assert (await post(f"{root}/v1/embeddings", {"input": "x"}))[0] == 200
        assert (await post(f"{root}/faults", {}))[1] == {"asked": {"/v1/embeddings": 2}, "failed": 1}
        assert (await post(f"{root}/faults", {"hang": 3}))[0] == 400
    finally:
        process.terminate()
        await process.wait()
