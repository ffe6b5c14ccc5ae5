"""A tool as the agent runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from everthread.domain.model import SessionRef
from everthread.ports.model import ToolSchema


class ToolUse(Struct, frozen=True):
    """Whose call it is: the session and the turn that asked for it, and the model's id of the call."""

    ref: SessionRef
    turn_id: str
    call_id: str


class Tool(Struct, frozen=True):
    """What the model is told, and what is run. `run` answers in words the model can read.

    It raises `ToolFailed` for what the model should hear about; anything else is a bug, and told to the model as one.
    """

    schema: ToolSchema
    run: Callable[[Mapping[str, Any], ToolUse], Awaitable[str]]
    parallel: bool = False
    """Safe to run beside other calls of the same answer."""
    dangerous: bool = False
    """Somebody has to approve of each call."""
    timeout_s: float = 120.0
    remembers: bool = False
    """Writes down what is to last: not for work that others asked for."""
    goes_on: bool = False
    """Run again for a call that a crash has cut off (same turn, same call id), it goes on with that call. What other
    tools came to is then told to be unknown.
    """

    @property
    def name(self) -> str:
        return self.schema.name
