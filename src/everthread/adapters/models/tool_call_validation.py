"""Validation of tool calls: names, arguments and unique ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everthread.domain.model import Message, ToolCall
from everthread.ports.model import Finish

_INVALID_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


def valid_name(name: str) -> str:
    """Make a name or id valid for every endpoint: an invalid one would make all later requests of a session fail."""
    return _INVALID_IN_NAME.sub("_", name)[:64] or "_"


def is_object(arguments: str) -> bool:
    """Tell whether the arguments are a complete JSON object."""
    if not arguments.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def runnable_calls(
    calls: Sequence[ToolCall], finish: Finish, tail: Sequence[Message]
) -> tuple[tuple[ToolCall, ...], Finish]:
    """Return the complete calls, each with an id that is unique in the turn, and the resulting finish reason.

    Some endpoints send no ids, or the same ones in each response.
    """
    if finish is Finish.REFUSED:
        return (), finish
    if finish is Finish.LENGTH:
        calls = [call for call in calls if is_object(call.arguments)]
    used_ids = {call.id for message in tail for call in message.tool_calls}
    number = len(used_ids)
    runnable: list[ToolCall] = []
    for call in calls:
        id = call.id
        while not id or id in used_ids:
            id, number = f"call_{number}", number + 1
        used_ids.add(id)
        runnable.append(replace(call, id=id))
    if runnable:
        return tuple(runnable), Finish.TOOLS
    return (), Finish.STOP if finish is Finish.TOOLS else finish
