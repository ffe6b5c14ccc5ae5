"""The tool set of an agent, and the runner of tool calls: approve, record, run with a timeout."""

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
from msgspec.structs import replace

from everthread.agent.events import ApprovalRequest, Approve, Listen, ToolBegan, ToolEnded
from everthread.agent.tools.approval import ApprovalRules
from everthread.agent.transcript import result
from everthread.agent.turn_guard import TurnGuard
from everthread.domain.errors import BadInput, EverthreadError, StoreError
from everthread.domain.model import Message, Role, SessionRef, Thought, ToolCall, ToolState
from everthread.domain.rights import Rights
from everthread.lifecycle import Lifecycle
from everthread.memory import MemoryManager
from everthread.plugins import HookRunner
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

ARGUMENTS_CHARS_MAX = 1_000_000
RESULT_CHARS_MAX = 100_000
PROVIDER_TOOL_S_MAX = 60.0
NAME_CHARS_MAX = 100
CALLS_MAX = 32
"""Limit for one answer. More calls indicate a runaway model, and would make the turn too large to store."""
NOT_GRANTED = (
    "Error: {name!r} was not run: the person whose message you answer may not use it. Tell them that the operator "
    "decides that; do not try it again"
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that every endpoint accepts. An invalid name fails the whole request."""


class Toolbox:
    """Tools with unique names in a fixed order. The same tools give the same schemas, byte for byte."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise BadInput(f"there are two tools called {tool.name!r}; rename or remove one")
            self._tools[tool.name] = tool
        encoded = msgspec.json.encode([tool.schema for tool in self._tools.values()])
        # Decoded from JSON like the schemas in a stored prompt, so that the two compare equal.
        self.schemas = msgspec.json.decode(encoded, type=tuple[ToolSchema, ...])
        self.digest = hashlib.sha256(encoded).hexdigest()
        self.has_whole_memory = any(tool.whole_memory for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def only(self, wanted: Callable[[Tool], bool]) -> Toolbox:
        """Return the selected tools, in the same order."""
        return Toolbox(tool for tool in self._tools.values() if wanted(tool))


def may_use(rights: Rights, tool: Tool) -> bool:
    return rights.may_use_tool(tool.name, tool.source, remembers=tool.remembers)


async def provider_tools(memory: MemoryManager, taken: Collection[str]) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Return the tools of the memory providers, and a message for each tool that is left out.

    A tool with an invalid or duplicate name is left out, so that the others work.
    """
    found: dict[str, Tool] = {}
    left_out: list[str] = []
    for provider, schemas in (await memory.tool_schemas()).items():
        for given in schemas:
            # Providers give either the function itself or the wrapped form of the OpenAI API.
            schema = cast(Mapping[str, Any], given.get("function", given))
            name = str(schema.get("name", ""))
            if why := _unusable(name, {*taken, *found}):
                left_out.append(f"memory provider {provider}: its tool {name[:NAME_CHARS_MAX]!r} is left out: {why}")
                continue
            parameters = cast(Mapping[str, Any], schema.get("parameters") or {"type": "object", "properties": {}})
            described = ToolSchema(name, str(schema.get("description", "")), parameters)
            ask = partial(_ask_provider, memory, provider, name)
            # The schema does not tell if a tool writes memory, so assume that it does.
            whole = not memory.filters_by_conversation(provider)
            found[name] = Tool(
                described,
                ask,
                timeout_s=PROVIDER_TOOL_S_MAX,
                remembers=True,
                whole_memory=whole,
                source=f"memory:{provider}",
            )
    return tuple(found.values()), tuple(left_out)


def _unusable(name: str, taken: Collection[str]) -> str:
    if not _NAME.fullmatch(name):
        return "a name must be 1 to 64 letters, digits, _ or -"
    return "another tool has this name" if name in taken else ""


async def _ask_provider(
    memory: MemoryManager, provider: str, name: str, arguments: Mapping[str, Any], use: ToolUse
) -> str:
    return await memory.handle_tool_call(provider, name, arguments, ref=use.ref)


class TurnRights(Struct, frozen=True):
    """The rights that the calls of a turn are run with, and the accounts whose messages it answers."""

    rights: Rights
    speakers: frozenset[str] = frozenset()

    def use(self, guard: TurnGuard, call: ToolCall) -> ToolUse:
        claim = guard.claim
        speaker = next(iter(self.speakers)) if len(self.speakers) == 1 else ""
        return ToolUse(claim.ref, claim.turn_id, call.id, self.rights, speaker, guard.record)


class ToolRunner(Struct, frozen=True):
    """Run the tool calls of a model answer."""

    lifecycle: Lifecycle
    hooks: HookRunner
    allowed: Collection[str] = ()
    """Names of dangerous tools that need no approval."""
    approval: ApprovalRules = ApprovalRules()

    async def run(
        self,
        toolbox: Toolbox,
        answer: Message,
        guard: TurnGuard,
        rights: TurnRights,
        *,
        done: list[Message],
        listen: Listen,
        approve: Approve,
    ) -> None:
        """Append a result for each call to `done` as it arrives. Adjacent calls of parallel tools run concurrently."""
        one_question = asyncio.Lock()

        async def ask(request: ApprovalRequest, ref: SessionRef) -> bool:
            # One question at a time, so that none is asked after the check is out of date.
            async with one_question:
                await guard.check()
                return await approve(request, ref)

        async def one(call: ToolCall) -> None:
            done.append(result(call, await self._one(toolbox, call, answer.thought, guard, rights, listen, ask)))

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
                    # Tool errors become results; only a failed store or a lost turn gets here.
                    raise several.exceptions[0] from several

    async def resume(
        self, toolbox: Toolbox, guard: TurnGuard, rights: TurnRights, *, done: list[Message], listen: Listen
    ) -> None:
        """Resume the calls that a crash interrupted, if their tools support it; replace their results in `done`."""
        claim = guard.claim
        if not claim.tools:
            return

        async def one(call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> None:
            await guard.check()
            text = await self._finished(tool, arguments, call, guard, rights, listen)
            for number, message in enumerate(done):
                if message.role is Role.TOOL and message.tool_call_id == call.id:
                    done[number] = result(call, text)

        try:
            async with asyncio.TaskGroup() as tasks:
                for row in claim.tools:
                    tool, call = toolbox.get(row.name), ToolCall(row.call_id, row.name, row.arguments)
                    arguments = _arguments(call)
                    if tool is None or not tool.goes_on or not may_use(rights.rights, tool):
                        continue
                    if row.state is ToolState.STARTED and not isinstance(arguments, str):
                        tasks.create_task(one(call, tool, arguments), name=f"tool:{call.name}")
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _one(
        self,
        toolbox: Toolbox,
        call: ToolCall,
        thought: Thought | None,
        guard: TurnGuard,
        rights: TurnRights,
        listen: Listen,
        approve: Approve,
    ) -> str:
        claim, tool = guard.claim, toolbox.get(call.name)
        if tool is None:
            known = ", ".join(toolbox.names) or "none"
            return f"Error: there is no tool {call.name[:NAME_CHARS_MAX]!r}; available: {known}"
        if not may_use(rights.rights, tool):
            return NOT_GRANTED.format(name=tool.name)
        arguments = _arguments(call)
        if isinstance(arguments, str):
            return arguments
        asks = tool.dangerous and tool.name not in self.allowed
        if refusal := await self.approval.refusal(tool, call, arguments, claim.ref, approve, asks=asks):
            return f"Error: {refusal}"
        # Checks the turn's slot, also after the answer to a question.
        allowed = await guard.permit(
            lambda: self.lifecycle.start_tool(claim, call.id, call.name, call.arguments, thought)
        )
        if allowed != call.arguments:
            # Something was forgotten while the turn ran: no tool may write it down again.
            call = replace(call, arguments=allowed)
            arguments = _arguments(call)
            if isinstance(arguments, str):
                return arguments
        return await self._finished(tool, arguments, call, guard, rights, listen)

    async def _finished(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        call: ToolCall,
        guard: TurnGuard,
        rights: TurnRights,
        listen: Listen,
    ) -> str:
        claim = guard.claim
        listen(ToolBegan(call))
        if "pre_tool_call" in self.hooks.names:
            await self.hooks.notify("pre_tool_call", ref=claim.ref, name=call.name, arguments=call.arguments)
            # A boundary may have been crossed while the plugin ran, which may take seconds.
            await guard.check()
        text = _shorten(await _outcome(tool, arguments, rights.use(guard, call)))
        await self.lifecycle.finish_tool(claim, call.id, text)
        await self.hooks.notify("post_tool_call", ref=claim.ref, name=call.name, result=text)
        listen(ToolEnded(call, text))
        return text

    async def run_aside(self, tool: Tool, call: ToolCall, use: ToolUse) -> str:
        """Run a call outside of a turn: without approval and without a record."""
        if not may_use(use.rights, tool):
            return NOT_GRANTED.format(name=tool.name)
        arguments = _arguments(call)
        if isinstance(arguments, str):
            return arguments
        await self.hooks.notify("pre_tool_call", ref=use.ref, name=call.name, arguments=call.arguments)
        text = _shorten(await _outcome(tool, arguments, use))
        await self.hooks.notify("post_tool_call", ref=use.ref, name=call.name, result=text)
        return text


async def _outcome(tool: Tool, arguments: Mapping[str, Any], use: ToolUse) -> str:
    """Return the tool's result, or an error message for the model."""
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
        return f"Error: {tool.name} cancelled itself; it may or may not have taken effect"
    except StoreError:
        raise
    except EverthreadError as error:
        return f"Error: {error}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code; the model can often do without it
        return f"Error: {tool.name} failed: {error!r}"
    # Third-party tools may return any type; that must not fail the turn.
    return answer if isinstance(answer, str) else f"Error: {tool.name} answered with {type(answer).__name__}, not text"


def _is_parallel(toolbox: Toolbox, call: ToolCall) -> bool:
    tool = toolbox.get(call.name)
    return tool is not None and tool.parallel


def _arguments(call: ToolCall) -> dict[str, Any] | str:
    """Parse the arguments as a JSON object, or return an error message for the model."""
    if len(call.arguments) > ARGUMENTS_CHARS_MAX:
        return f"Error: the arguments have {len(call.arguments)} characters; at most {ARGUMENTS_CHARS_MAX} are allowed"
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments are not a JSON object ({error}); call {call.name} again with valid arguments"


def _shorten(text: str) -> str:
    if len(text) <= RESULT_CHARS_MAX:
        return text
    half = RESULT_CHARS_MAX // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
