"""Our values as plugins know them, and what they answer as ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everthread.domain.model import Message
from everthread.ports.memory import RecallItem

_HEADING = re.compile(r"\s*#{1,6}\s")
_POINT = re.compile(r"\s*[-*•]\s+")
# Some say how sure they are in front of each: `- [0.5] keeps bees`.
_TRUST = re.compile(r"\[([01]?\.\d+|[01])\]\s+")


def as_openai(message: Message) -> dict[str, Any]:
    """A message in the form that every plugin reads."""
    found: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        found["name"] = message.name
    return found


def recalled(text: str, limit: int) -> tuple[RecallItem, ...]:
    """A block of text for a prompt as single memories: the points of a list, or else its paragraphs.

    Headings are left out. Best first, as it stands; where it came from, plugins do not say.
    """
    items: list[list[str]] = []
    depth: int | None = None
    open_ended = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            # What is indented behind it still belongs to a point.
            open_ended = False
        elif depth is not None and indent > depth:
            items[-1].append(line.strip())
        elif _HEADING.match(line):
            depth, open_ended = None, False
        elif _POINT.match(line):
            items.append([_POINT.sub("", line, count=1).strip()])
            depth = indent
            open_ended = True
        elif open_ended:
            items[-1].append(line.strip())
        else:
            items.append([line.strip()])
            depth = None
            open_ended = True
    return _ranked(["\n".join(lines) for lines in items])[: max(limit, 0)]


def _ranked(texts: Sequence[str]) -> tuple[RecallItem, ...]:
    found: list[RecallItem] = []
    for rank, text in enumerate(texts):
        bare = _TRUST.sub("", text, count=1) if _TRUST.match(text) else text
        found.append(RecallItem(bare, 1 / (1 + rank)))
    return tuple(item for item in found if item.text)
