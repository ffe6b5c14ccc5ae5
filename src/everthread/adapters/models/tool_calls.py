"""Tool calls as the rest of the program may rely on them, whatever a model or an endpoint made of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from everthread.domain.model import Message, ToolCall
from everthread.ports.model import Finish

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def valid_name(name: str) -> str:
    """The name or id as every endpoint takes it: a model's slip must not have a session refused from then on."""
    return _NOT_IN_A_NAME.sub("_", name)[:64] or "_"


def is_object(arguments: str) -> bool:
    """Whether these are the arguments of a call, all of them."""
    if not arguments.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def told_apart(
    calls: Sequence[ToolCall], finish: Finish, tail: Sequence[Message]
) -> tuple[tuple[ToolCall, ...], Finish]:
    """The calls that can be run, each with an id that no other call of the turn has; and what that makes of the end.

    A call that was cut off is none. Some endpoints give no ids, or the same ones in each answer.
    """
    if finish is Finish.REFUSED:
        return (), finish
    if finish is Finish.LENGTH:
        calls = [call for call in calls if is_object(call.arguments)]
    taken = {call.id for message in tail for call in message.tool_calls}
    number = len(taken)
    found: list[ToolCall] = []
    for call in calls:
        id = call.id
        while not id or id in taken:
            id, number = f"call_{number}", number + 1
        taken.add(id)
        found.append(replace(call, id=id))
    if found:
        return tuple(found), Finish.TOOLS
    return (), Finish.STOP if finish is Finish.TOOLS else finish
