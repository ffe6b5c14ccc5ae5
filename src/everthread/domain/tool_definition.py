"""The definition of a tool by its MCP server, and the difference between two of them in words.

A server may change its tools at any time. The user approves a definition; `digest` and `identity` tell whether a later
one is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from everthread.domain.text_format import format_call, show_invisible

NAMES_MAX = 5
NAME_CHARS_MAX = 40
DESCRIPTION_CHARS_MAX = 200


class DefinitionText(Struct, frozen=True):
    """The part of a definition that describes the tool. The defaults stand for a text that was forgotten."""

    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def decode(cls, stored: str) -> DefinitionText:
        return msgspec.json.decode(stored, type=cls)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


class ToolDefinition(Struct, frozen=True):
    """A tool as its server defines it."""

    server: str
    identity: str
    """Hash of the server's program and arguments, or of its URL."""
    tool: str
    """Name of the tool on its server."""
    text: DefinitionText
    digest: str
    """Hash of name, description, parameters and annotations in canonical JSON."""

    @classmethod
    def of(cls, server: str, identity: str, tool: str, text: DefinitionText) -> ToolDefinition:
        canonical = msgspec.json.encode((tool, text), order="sorted")
        return cls(server, identity, tool, text, hashlib.sha256(canonical).hexdigest())


def describe_change(old: ToolDefinition, new: ToolDefinition) -> str:
    """Say in words how a tool differs from its approved definition; empty if it does not.

    All names and texts come from the server: they are quoted, shortened, and without invisible characters. A user who
    decides on the change also needs `show_change`.
    """
    changes = ["its server has another program or address"] if old.identity != new.identity else []
    if old.digest != new.digest:
        changes += _text_changes(old.text, new.text) if old.text != DefinitionText() else ["its definition differs"]
    return "; ".join(changes)


def show_change(old: ToolDefinition, new: ToolDefinition) -> str:
    """Show all texts that differ, approved and new, each in full and with invisible characters as codes."""
    before, after = _parts(old.text), _parts(new.text)
    differing = {what for what in before.keys() | after.keys() if _canonical(before, what) != _canonical(after, what)}
    shown = {
        f"{when} {what}": parts[what]
        for what in sorted(differing)
        for when, parts in (("approved", before), ("new", after))
        if what in parts
    }
    return format_call("Approved and new texts of the server:", shown) if shown else ""


def _parts(text: DefinitionText) -> dict[str, Any]:
    """Return all of a definition in the parts that are compared."""
    properties = _properties(text.parameters)
    rest = {key: value for key, value in text.parameters.items() if key != "properties" or value != properties}
    return {
        "description": text.description,
        "schema": rest,
        **{f"parameter {name}": value for name, value in properties.items()},
        **{f"annotation {name}": value for name, value in text.annotations.items()},
    }


def _canonical(parts: Mapping[str, Any], what: str) -> bytes:
    # In Python, 1 == True: the digest tells them apart.
    return msgspec.json.encode((parts[what],), order="sorted") if what in parts else b""


def _text_changes(old: DefinitionText, new: DefinitionText) -> list[str]:
    changes: list[str] = []
    if old.description != new.description:
        changes.append(f"its description is now {_quote(new.description, DESCRIPTION_CHARS_MAX)}")
    before, after = _properties(old.parameters), _properties(new.parameters)
    kept = before.keys() & after.keys()
    named = (
        ("new parameters", after.keys() - kept),
        ("removed parameters", before.keys() - kept),
        ("changed parameters", {name for name in kept if before[name] != after[name]}),
        ("changed annotations", _differences(old.annotations, new.annotations)),
    )
    changes += [f"{what}: {_names(names)}" for what, names in named if names]
    if before == after and old.parameters != new.parameters:
        changes.append("its schema differs")
    return changes or ["its definition differs"]


def _properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = parameters.get("properties")
    return cast("Mapping[str, Any]", properties) if isinstance(properties, dict) else {}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _names(names: set[str]) -> str:
    shown = [_quote(name, NAME_CHARS_MAX) for name in sorted(names)[:NAMES_MAX]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _quote(text: str, chars_max: int) -> str:
    cut = text if len(text) <= chars_max else f"{text[:chars_max]}..."
    return show_invisible(msgspec.json.encode(cut).decode())
