"""Our messages in the format of plugins, and their text as recall items."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from everthread.domain.model import Message
from everthread.ports.memory import RecallItem

_HEADING = re.compile(r"\s*#{1,6}\s")
_POINT = re.compile(r"\s*[-*•]\s+")
# Some plugins put a confidence in front: `- [0.5] keeps bees`.
_TRUST = re.compile(r"\[([01]?\.\d+|[01])\]\s+")


def openai_message(message: Message) -> dict[str, Any]:
    """Convert a message to the OpenAI format, which plugins expect."""
    result: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        result["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        result["name"] = message.name
    return result


def recall_items(text: str, limit: int) -> tuple[RecallItem, ...]:
    """Split a text for a prompt into memories: the items of a list, or else the paragraphs.

    Headings are left out. The order is the ranking. Plugins do not tell the origin of a memory.
    """
    items: list[list[str]] = []
    depth: int | None = None
    open_ended = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            # Indented lines after it still belong to the item.
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
    result: list[RecallItem] = []
    for rank, text in enumerate(texts):
        bare = _TRUST.sub("", text, count=1) if _TRUST.match(text) else text
        result.append(RecallItem(bare, 1 / (1 + rank)))
    return tuple(item for item in result if item.text)
