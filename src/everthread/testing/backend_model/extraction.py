"""Stub replies to the extraction requests of memory back ends.

A back end sends its model a piece of conversation and expects the facts in it: Hindsight and Mem0 as JSON, OpenViking
as a small Python program. Each line by a person is one fact, word for word, so that recall can be tested. Hindsight
also asks for conclusions from facts; the reply repeats each fact.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

WORDS_OF_A_NAME = 3
_SPEAKER = re.compile(
    r"^(?:\[[^\]]*\]\s*)*(?:\*\*)?(?P<who>user|assistant|system|tool)?(?:\*\*)?\s*[:\]]\s*", re.IGNORECASE
)
_PIECES = (
    ("hindsight", re.compile(r"^Extract facts from.*?^Content:\n(.*)", re.DOTALL | re.MULTILINE)),
    ("mem0", re.compile(r"^## New Messages\n(.*?)(?:\n\n## |\Z)", re.DOTALL | re.MULTILINE)),
    (
        "openviking",
        re.compile(r"^## Conversation History\n.*?\n\n(.*?)(?:\n\nAfter exploring|\Z)", re.DOTALL | re.MULTILINE),
    ),
)
_NUMBERED = re.compile(r"^\[(?P<number>\d+)\]\[(?:user|assistant)\]", re.MULTILINE)
_NEW_FACTS = re.compile(r"^## INPUT\n+### New facts\n(.*?)^### Existing observations", re.DOTALL | re.MULTILINE)
_NEW_FACT = re.compile(r"^\[(?P<id>[0-9a-f-]{36})\] (?P<fact>.*?)(?: \([a-z_]+=.*\))?$", re.MULTILINE)
Schema = Mapping[str, Any]


def reply_to(texts: Sequence[str], response_format: Schema | None = None) -> str:
    """Reply to a request with these texts. Without anything to extract, the reply is a short plain text."""
    found = _piece(texts)
    if (new := _NEW_FACTS.search(texts[-1] if texts else "")) is not None:
        return json.dumps({"creates": [_observation(*each.groups()) for each in _NEW_FACT.finditer(new[1])]})
    if any("sdk.commit()" in text for text in texts):
        return _program_of(found[1]) if found else entity_program([])
    if found is not None and found[0] == "hindsight":
        return json.dumps({"facts": [_hindsight_fact(fact) for fact in facts_in(found[1])]})
    if found is not None and found[0] == "mem0":
        return json.dumps({"memory": [{"id": str(n), "text": fact} for n, fact in enumerate(facts_in(found[1]))]})
    if response_format is not None and response_format.get("type") == "json_schema":
        return json.dumps(smallest_value(response_format["json_schema"].get("schema", {})))
    if response_format is not None and response_format.get("type") == "json_object":
        return "{}"
    return "Noted: " + " ".join(" ".join(texts[-1:]).split()[:20])


def facts_in(piece: str) -> list[str]:
    """List the lines said by people, without duplicates. Lines by the assistant are no facts."""
    facts: dict[str, None] = {}
    for who, line in _lines(piece):
        if who != "assistant" and line.strip():
            facts[line.strip()] = None
    return list(facts)


def entity_program(facts: Sequence[str]) -> str:
    """Write the facts as calls in OpenViking's restricted Python."""
    calls = [
        f'sdk.create_entities(category="""facts""", name="""{_name_of(fact)}""", content="""{_in_quotes(fact)}""")'
        for fact in facts
    ]
    return "\n".join([*calls, "sdk.commit()"])


def event_program(said: Sequence[tuple[str, int]]) -> str:
    """Write the facts as events, each with the number of its message. OpenViking stores events immediately; it buffers
    entities until there are eight of a kind, or for ten seconds.
    """
    calls = [
        f'sdk.create_events(event_name="""{_name_of(fact)}""", goal="""remember""", '
        f'summary="""{_in_quotes(fact)}""", ranges="""{number}""")'
        for fact, number in said
    ]
    return "\n".join([*calls, "sdk.commit()"])


def smallest_value(schema: Schema, whole: Schema | None = None) -> Any:
    """Return the smallest value that fits a JSON schema."""
    whole = schema if whole is None else whole
    if "$ref" in schema:
        target: Any = whole
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target[part]
        return smallest_value(target, whole)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return smallest_value(schema[key][0], whole)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if schema.get("type") == "object":
        properties = cast("Mapping[str, Schema]", schema.get("properties", {}))
        return {
            name: smallest_value(properties[name], whole) for name in schema.get("required", ()) if name in properties
        }
    zero = schema.get("minimum", 0)
    plain: dict[str, Any] = {"array": [], "string": "", "integer": zero, "number": zero, "boolean": False}
    return plain.get(str(schema.get("type")))


def _piece(texts: Sequence[str]) -> tuple[str, str] | None:
    for text in reversed(texts):
        for whose, pattern in _PIECES:
            if found := pattern.search(text):
                return whose, found[1]
    return None


def _program_of(piece: str) -> str:
    """Write events if the messages are numbered, as in a conversation; otherwise entities."""
    if _NUMBERED.match(piece) is None:
        return entity_program(facts_in(piece))
    starts = [*_NUMBERED.finditer(piece)]
    ends = [*(start.start() for start in starts[1:]), len(piece)]
    said: dict[str, int] = {}
    for start, end in zip(starts, ends, strict=True):
        for fact in facts_in(piece[start.start() : end]):
            said.setdefault(fact, int(start["number"]))
    return event_program(list(said.items()))


def _lines(piece: str) -> list[tuple[str, str]]:
    """Split a piece into lines, each with its speaker ("" if none is named)."""
    try:
        messages: object = json.loads(piece)
    except ValueError:
        messages = None
    if isinstance(messages, list):
        given = [cast("dict[str, Any]", one) for one in cast("list[object]", messages) if isinstance(one, dict)]
        return [(str(one.get("role", "")), line) for one in given for line in str(one.get("content", "")).splitlines()]
    lines: list[tuple[str, str]] = []
    who = ""
    for line in piece.splitlines():
        speaker = _SPEAKER.match(line)
        if speaker is not None:
            who = (speaker["who"] or _within(line)).lower()
        lines.append((who, line[speaker.end() :] if speaker else line))
    return lines


def _within(line: str) -> str:
    """Return the speaker named in brackets."""
    return "assistant" if "[assistant" in line.lower() else "user"


def _hindsight_fact(fact: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("when", "where", "who", "why"), "N/A")
    return {"what": fact, **nothing, "fact_kind": "conversation", "fact_type": "world", "entities": []}


def _observation(fact_id: str, fact: str) -> dict[str, Any]:
    """Conclusion that Hindsight expects from a fact: the fact itself."""
    return {"text": f"It is known that: {fact}", "source_fact_ids": [fact_id], "reason": "new"}


def _name_of(fact: str) -> str:
    """Derive a name that is unique to the fact."""
    words = re.findall(r"[a-z0-9]+", fact.lower())[:WORDS_OF_A_NAME]
    return "_".join([*words, hashlib.sha256(fact.encode()).hexdigest()[:8]])


def _in_quotes(text: str) -> str:
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in plain)
