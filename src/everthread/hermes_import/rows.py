"""Rows of Hermes's database, and their conversion. Content that cannot be parsed is kept as text."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from msgspec import Struct

from everthread.domain.export_format import TEXT_CHARS_MAX, CallLine, MessageLine
from everthread.domain.model import Role, replace_surrogates

ENCODED = "\0json:"
"""Prefix of content that is not plain text."""
ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}
TIME_MAX = 253_402_300_799.0
_CALLS_MAX = 1000


class SessionRow(Struct, frozen=True):
    """A row of `sessions`. Columns that a version of Hermes lacks are None."""

    id: str
    source: str
    user_id: str | None
    parent: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    title: str | None
    marks: dict[str, Any]
    """Marks from `model_config`: the session that this one branched or was delegated from."""
    session_key: str | None = None
    chat_id: str | None = None
    chat_type: str | None = None
    thread_id: str | None = None
    finalised: bool = False


class MessageRow(Struct, frozen=True):
    """A row of `messages`."""

    id: int
    role: str
    content: str
    at: float
    tool_call_id: str | None = None
    tool_calls: str | None = None
    tool_name: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    active: bool = True
    compacted: bool = False
    observed: bool = False

    @property
    def rewound(self) -> bool:
        """True if the user rewound the message. Summarised messages are inactive too, but remain."""
        return not self.active and not self.compacted

    @property
    def is_known(self) -> bool:
        return self.role in ROLES

    @property
    def ends_a_turn(self) -> bool:
        return self.role == "assistant" and not self.tool_calls and self.finish_reason != "tool_calls"


def time_of(value: object, otherwise: float = 0.0) -> float:
    """Return a time that can be stored, else `otherwise`."""
    try:
        at = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return at if math.isfinite(at) and 0 <= at <= TIME_MAX else otherwise


def text_of(content: str) -> str:
    """Return the text of a message. Parts that are not text are replaced by their type."""
    if not content.startswith(ENCODED):
        return replace_surrogates(content)[:TEXT_CHARS_MAX]
    try:
        found = json.loads(content[len(ENCODED) :])
    except (ValueError, RecursionError):
        return replace_surrogates(content.replace("\0", ""))[:TEXT_CHARS_MAX]
    parts = cast("list[object]", found) if isinstance(found, list) else [found]
    return replace_surrogates("\n".join(filter(None, map(_part, parts))))[:TEXT_CHARS_MAX]


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return json.dumps(part)
    fields = cast("dict[str, object]", part)
    if isinstance(text := fields.get("text"), str):
        return text
    kind = str(fields.get("type", ""))
    if "image" in kind:
        return "[image]"
    if "audio" in kind or "file" in kind or "video" in kind:
        return f"[{kind.removeprefix('input_')}]"
    return json.dumps(fields, ensure_ascii=False)


def calls_of(written: str | None) -> tuple[CallLine, ...]:
    """Parse the tool calls of an answer."""
    if not written:
        return ()
    try:
        found: object = json.loads(written)
        # Some versions encoded the JSON twice.
        found = json.loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        return ()
    calls = cast("list[object]", found) if isinstance(found, list) else [found]
    return tuple(call for each in calls[:_CALLS_MAX] if (call := _call(each)) is not None)


def _call(call: object) -> CallLine | None:
    if not isinstance(call, dict):
        return None
    fields = cast("dict[str, Any]", call)
    inner = fields.get("function")
    function = cast("dict[str, Any]", inner) if isinstance(inner, dict) else fields
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return None
    arguments = function.get("arguments", "{}")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return CallLine(
        replace_surrogates(str(fields.get("id") or fields.get("call_id") or "")),
        replace_surrogates(name),
        replace_surrogates(written),
    )


def line_of(row: MessageRow) -> MessageLine:
    """Convert a message to the export format. Its role must be known."""
    role = ROLES[row.role]
    calls = calls_of(row.tool_calls)
    content = text_of(row.content)
    if row.tool_calls and not calls:
        content = "\n".join(filter(None, (content, replace_surrogates(row.tool_calls)[:TEXT_CHARS_MAX])))
    answers = role is Role.TOOL
    return MessageLine(
        role,
        content,
        calls if role is Role.ASSISTANT else (),
        replace_surrogates(row.tool_call_id or "") if answers else None,
        replace_surrogates(row.tool_name) if answers and row.tool_name else None,
        replace_surrogates(row.reasoning)[:TEXT_CHARS_MAX] if row.reasoning else None,
    )
