"""The tools of an agent, and running what a model asks for: approved, recorded, bounded, in its own turn's name."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any, cast

import msgspec
from msgspec import Struct

from everthread.agent.events import Approve, Listen, ToolBegan, ToolEnded
from everthread.agent.transcript import result
from everthread.domain.errors import BadInput, EverthreadError, NotApproved, StoreError
from everthread.domain.model import Message, Role, Thought, ToolCall, ToolState
from everthread.lifecycle import Lifecycle, TurnClaim
from everthread.memory import MemoryManager
from everthread.plugins import HookRunner
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

ARGUMENTS_CHARS_MAX = 1_000_000
RESULT_CHARS_MAX = 100_000
PROVIDER_TOOL_S_MAX = 60.0
NAME_CHARS_MAX = 100
CALLS_MAX = 32
"""In one answer. More would be a model out of its mind, and a turn too large to store."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every endpoint takes for the name of a tool. One that it does not take fails the whole request."""


class Toolbox:
    """A set of tools with names of their own, in a fixed order: the same set gives the same schemas, byte for byte."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise BadInput(f"there are two tools called {tool.name!r}; rename or remove one")
            self._tools[tool.name] = tool
        encoded = msgspec.json.encode([tool.schema for tool in self._tools.values()])
        # As they come back from the store, so that the two can be compared.
        self.schemas = msgspec.json.decode(encoded, type=tuple[ToolSchema, ...])
        self.digest = hashlib.sha256(encoded).hexdigest()

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def only(self, wanted: Callable[[Tool], bool]) -> Toolbox:
        """Those of the tools that are wanted, in the same order."""
        return Toolbox(tool for tool in self._tools.values() if wanted(tool))


async def provider_tools(memory: MemoryManager, taken: Collection[str]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The tools that memory providers bring, and why some are left out: one that no model would take, or whose name is
    taken, must not keep the others from working."""
    found: dict[str, Tool] = {}
    left_out: list[str] = []
    for provider, schemas in (await memory.tool_schemas()).items():
        for given in schemas:
            # The two shapes in use: the function itself, or wrapped as endpoints want it.
            schema = cast(Mapping[str, Any], given.get("function", given))
            name = str(schema.get("name", ""))
            if why := _unusable(name, {*taken, *found}):
                left_out.append(f"memory provider {provider}: its tool {name[:NAME_CHARS_MAX]!r} is left out: {why}")
                continue
            parameters = cast(Mapping[str, Any], schema.get("parameters") or {"type": "object", "properties": {}})
            described = ToolSchema(name, str(schema.get("description", "")), parameters)
            ask = partial(_ask_provider, memory, provider, name)
            # Whether one writes is not said, so all count as if they did.
            found[name] = Tool(described, ask, timeout_s=PROVIDER_TOOL_S_MAX, remembers=True)
    return tuple(found.values()), tuple(left_out)


def _unusable(name: str, taken: Collection[str]) -> str:
    if not _NAME.fullmatch(name):
        return "a name must be 1 to 64 letters, digits, _ or -"
    return "there is another of that name" if name in taken else ""


async def _ask_provider(
    memory: MemoryManager, provider: str, name: str, arguments: Mapping[str, Any], use: ToolUse
) -> str:
    return await memory.handle_tool_call(provider, name, arguments, ref=use.ref)


class ToolRunner(Struct, frozen=True):
    """Runs the calls of one answer."""

    lifecycle: Lifecycle
    hooks: HookRunner
    allowed: Collection[str] = ()
    """Dangerous tools that need no approval."""

    async def run(
        self,
        toolbox: Toolbox,
        answer: Message,
        ticket: TurnClaim,
        *,
        done: list[Message],
        listen: Listen,
        approve: Approve,
    ) -> None:
        """Put a result for each call into `done` as it comes. Neighbours that are safe together run at once."""

        async def one(call: ToolCall) -> None:
            done.append(result(call, await self._one(toolbox, call, answer.thought, ticket, listen, approve)))

        calls = answer.tool_calls
        for call in calls[CALLS_MAX:]:
            done.append(result(call, f"Error: at most {CALLS_MAX} calls in one answer are run; this one was not"))
        for together, group in groupby(calls[:CALLS_MAX], key=lambda call: _is_parallel(toolbox, call)):
            batch = list(group)
            for some in [batch] if together else [[call] for call in batch]:
                try:
                    async with asyncio.TaskGroup() as tasks:
                        for call in some:
                            tasks.create_task(one(call), name=f"tool:{call.name}")
                except ExceptionGroup as several:
                    # Only what no tool can help: the store is gone, or the turn is somebody else's.
                    raise several.exceptions[0] from several

    async def resume(self, toolbox: Toolbox, ticket: TurnClaim, *, done: list[Message], listen: Listen) -> None:
        """Go on with the calls that a crash has cut off, where that can be done; what they come to goes into `done`."""
        if not ticket.tools:
            return

        async def one(call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> None:
            text = await self._finished(tool, arguments, call, ticket, listen)
            for number, message in enumerate(done):
                if message.role is Role.TOOL and message.tool_call_id == call.id:
                    done[number] = result(call, text)

        try:
            async with asyncio.TaskGroup() as tasks:
                for row in ticket.tools:
                    tool, call = toolbox.get(row.name), ToolCall(row.call_id, row.name, row.arguments)
                    arguments = _arguments(call)
                    if tool and tool.goes_on and row.state is ToolState.STARTED and not isinstance(arguments, str):
                        tasks.create_task(one(call, tool, arguments), name=f"tool:{call.name}")
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _one(
        self,
        toolbox: Toolbox,
        call: ToolCall,
        thought: Thought | None,
        ticket: TurnClaim,
        listen: Listen,
        approve: Approve,
    ) -> str:
        tool = toolbox.get(call.name)
        if tool is None:
            known = ", ".join(toolbox.names) or "none"
            return f"Error: there is no tool {call.name[:NAME_CHARS_MAX]!r}; there are: {known}"
        arguments = _arguments(call)
        if isinstance(arguments, str):
            return arguments
        if tool.dangerous and tool.name not in self.allowed:
            try:
                approved = await approve(call, ticket.ref)
            except NotApproved as error:
                return f"Error: {error}"
            if not approved:
                return "Error: this call was not approved by the user; do not try it again unasked"
        await self.lifecycle.start_tool(ticket, call.id, call.name, call.arguments, thought)
        return await self._finished(tool, arguments, call, ticket, listen)

    async def _finished(
        self, tool: Tool, arguments: Mapping[str, Any], call: ToolCall, ticket: TurnClaim, listen: Listen
    ) -> str:
        listen(ToolBegan(call))
        await self.hooks.tell("pre_tool_call", ref=ticket.ref, name=call.name, arguments=call.arguments)
        text = _shortened(await _outcome(tool, arguments, ToolUse(ticket.ref, ticket.turn_id, call.id)))
        await self.lifecycle.finish_tool(ticket, call.id, text)
        await self.hooks.tell("post_tool_call", ref=ticket.ref, name=call.name, result=text)
        listen(ToolEnded(call, text))
        return text

    async def run_aside(self, tool: Tool, call: ToolCall, use: ToolUse) -> str:
        """What a call comes to that is no part of a turn: nobody is asked, and nothing of it is recorded."""
        arguments = _arguments(call)
        if isinstance(arguments, str):
            return arguments
        await self.hooks.tell("pre_tool_call", ref=use.ref, name=call.name, arguments=call.arguments)
        text = _shortened(await _outcome(tool, arguments, use))
        await self.hooks.tell("post_tool_call", ref=use.ref, name=call.name, result=text)
        return text


async def _outcome(tool: Tool, arguments: Mapping[str, Any], use: ToolUse) -> str:
    """What the tool says, or what went wrong with it, in words for the model."""
    bound = asyncio.timeout(tool.timeout_s)
    try:
        async with bound:
            answer = cast(object, await tool.run(arguments, use))
    except TimeoutError as error:
        if not bound.expired():
            return f"Error: {tool.name} failed: {error!r}"
        return f"Error: {tool.name} did not answer within {tool.timeout_s:g} s; it may or may not have taken effect"
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return f"Error: {tool.name} was cancelled by itself; it may or may not have taken effect"
    except StoreError:
        raise
    except EverthreadError as error:
        return f"Error: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code; the model can often do without it
        return f"Error: {tool.name} failed: {error!r}"
    # As above: whatever it returns must not spoil the turn.
    return answer if isinstance(answer, str) else f"Error: {tool.name} answered with {type(answer).__name__}, not text"


def _is_parallel(toolbox: Toolbox, call: ToolCall) -> bool:
    tool = toolbox.get(call.name)
    return tool is not None and tool.parallel


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    """The arguments as a JSON object, or what is wrong with them, in words for the model."""
    if len(call.arguments) > ARGUMENTS_CHARS_MAX:
        return f"Error: the arguments have {len(call.arguments)} characters; at most {ARGUMENTS_CHARS_MAX} are allowed"
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments are no JSON object ({error}); call {call.name} again with valid arguments"


def _shortened(text: str) -> str:
    if len(text) <= RESULT_CHARS_MAX:
        return text
    half = RESULT_CHARS_MAX // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
