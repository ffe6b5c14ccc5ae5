"""Tools that the agent runs. Test tools with `everthread.testing.contracts.tools`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from everthread.domain.model import SessionRef
from everthread.domain.rights import Rights
from everthread.domain.tool_definition import ToolDefinition
from everthread.ports.memory import RecallItem
from everthread.ports.model import ToolSchema


class ToolUse(Struct, frozen=True):
    """The session and turn of a tool call, the model's id of the call, and the rights that it is run with."""

    ref: SessionRef
    turn_id: str
    call_id: str
    rights: Rights = Rights()
    """The rights of the session's owner; in a group also limited to those of the speaker."""
    speaker: str = ""
    """The account whose message the turn answers; empty if it is unknown, or if the turn answers several."""
    record: Callable[[Sequence[RecallItem]], None] = lambda items: None
    """Records the memories that the result shows, by their ids."""


class Tool(Struct, frozen=True):
    """A tool's description and its function. `run` returns text for the model.

    It raises `ToolFailed` for errors that the model should handle; any other error is reported to the model as a bug.
    """

    schema: ToolSchema
    run: Callable[[Mapping[str, Any], ToolUse], Awaitable[str]]
    parallel: bool = False
    """Safe to run concurrently with other calls of the same answer."""
    dangerous: bool = False
    """Each call needs approval."""
    timeout_s: float = 120.0
    remembers: bool = False
    """Writes lasting memory; not offered to delegated or scheduled work."""
    whole_memory: bool = False
    """Answers from all of the owner's memory; not offered in group chats, where others read the answer."""
    goes_on: bool = False
    """Resumes an interrupted call when it is run again after a crash with the same turn and call id. The results of
    other interrupted tools are reported as unknown.
    """
    definition: ToolDefinition | None = None
    """The definition by a server that may change it. Approval pins it, and a changed tool needs approval again."""
    source: str = ""
    """The provider of the tool, for rights: `builtin`, `mcp:SERVER`, `memory:PROVIDER`; empty for plugins."""

    @property
    def name(self) -> str:
        return self.schema.name


class ServerReport(Struct, frozen=True):
    """The result of starting the configured MCP servers."""

    problems: Mapping[str, str]
    """The problem of each server that can't be used, completely or in part."""
    tools: tuple[Tool, ...]
