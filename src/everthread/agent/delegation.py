"""Delegation: run a subtask of a turn in a child session; its answer is the result of the tool call.

The child has the parent's tools, except those that need approval, write memory or delegate. It has a budget of its own.
Its session key belongs to no platform, so its answers are not sent anywhere. All state that is needed to resume is
stored: the child's key is derived from the call, so a repeated call finds the child session.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Struct, field

from everthread.agent.model_call import ModelChoice
from everthread.agent.prompt import decode_prompt
from everthread.agent.store_retry import StoreRetries
from everthread.agent.tools.arguments import TEXT, parse_arguments, tool_schema
from everthread.agent.tools.runner import Toolbox
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnOptions
from everthread.agent.turn_outcome import STOP_S_MAX
from everthread.concurrency import ignore_exception, wait_until_done
from everthread.domain.boundary import Expire, New, Suspend
from everthread.domain.errors import Erased, KeyMoved, ToolFailed
from everthread.domain.model import (
    Inbound,
    Message,
    Role,
    SessionKey,
    SessionKind,
    SessionRef,
    TurnStatus,
    subagent_key,
)
from everthread.domain.reset_policy import ResetPolicy
from everthread.domain.rights import BUILT_IN
from everthread.lifecycle import Lifecycle
from everthread.ports.clock import Clock
from everthread.ports.tools import Tool, ToolUse
from everthread.store.unit_of_work import Store, UnitOfWork

TASK_CHARS_MAX = 20_000
TOOL_S_MAX = 86_400.0
"""The limits of the child and of the waiting turn apply first."""

EXPIRE_S = 2.0
_EXPIRED = ResetPolicy(idle_s=1.0)
"""Expire the child session as soon as it is done."""

_DELEGATE = tool_schema(
    "delegate",
    "Delegate a task to a helper that has your tools, but does not see this conversation and can't ask questions. Put "
    "all information that it needs into `task`, and describe the answer that you expect. Useful for work with much to "
    "read and a short result; several calls in one answer run in parallel.",
    {"task": TEXT},
    required=["task"],
)


class _Arguments(msgspec.Struct):
    task: Annotated[str, msgspec.Meta(max_length=TASK_CHARS_MAX)]


class Outcome(Struct, frozen=True):
    """Result of a subtask: its answer, and the problem if the answer is missing or incomplete."""

    text: str
    problem: str = ""

    def __str__(self) -> str:
        if not self.problem:
            return self.text
        return f"The task was not finished: {self.problem}." + (f" So far:\n{self.text}" if self.text else "")


def tools_of_children(toolbox: Toolbox, allowed: Collection[str]) -> Toolbox:
    """Select the tools of a child: none that delegates, writes memory or needs approval."""
    return toolbox.only(lambda tool: tool.name != _DELEGATE.name and is_usable_unattended(tool, allowed))


def is_usable_unattended(tool: Tool, allowed: Collection[str]) -> bool:
    """Return true if an unattended turn may use the tool: it writes no memory and needs no approval."""
    return not tool.remembers and (not tool.dangerous or tool.name in allowed)


def key_of(use: ToolUse) -> SessionKey:
    """Derive the child's session key from the call. The same call gives the same key."""
    call = hashlib.sha256(use.call_id.encode(errors="replace")).hexdigest()[:16]
    return subagent_key(use.ref.key.profile, use.turn_id, call)


class Delegation(Struct, frozen=True):
    """The `delegate` tool. `agent` runs the child turns; `is_stopped` tells if the user stopped the waiting turn."""

    store: Store
    lifecycle: Lifecycle
    agent: Agent
    choices: Callable[[str], Sequence[ModelChoice]]
    is_stopped: Callable[[str], bool]
    clock: Clock
    parallel_max: int
    retries: StoreRetries
    _semaphores: dict[str, tuple[asyncio.Semaphore, int]] = field(
        default_factory=dict[str, tuple[asyncio.Semaphore, int]]
    )

    async def aclose(self) -> None:
        await self.retries.aclose()
        await self.agent.aclose()

    def tool(self) -> Tool:
        return Tool(_DELEGATE, self._run, parallel=True, goes_on=True, timeout_s=TOOL_S_MAX, source=BUILT_IN)

    async def _run(self, arguments: Mapping[str, Any], use: ToolUse) -> str:
        task = parse_arguments(_DELEGATE, arguments, _Arguments).task.strip()
        if not task:
            raise ToolFailed("delegate: `task` is empty; describe the task")
        async with self._limit_parallel(use.turn_id):
            work = asyncio.ensure_future(self._run_child(task, use))
            work.add_done_callback(ignore_exception)
            try:
                child, outcome = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.shield(self._stop(work, use))
                raise
        # The subtask is done: stopping the turn now must not prevent the record of its result.
        recording = asyncio.ensure_future(self._record(task, outcome, child, use))
        stopped = await wait_until_done(recording)
        recording.result()
        if stopped is not None:
            raise stopped
        return f"{outcome}\n\n(done in session {child})"

    async def _record(self, task: str, outcome: Outcome, child: str, use: ToolUse) -> None:
        await self.lifecycle.record_delegation(use.ref, task, str(outcome), child)
        await self._end(use)

    async def _end(self, use: ToolUse) -> None:
        """End the child session and unbind its key. Until that succeeds, the session only stays open."""
        key, owner = key_of(use), use.ref.owner

        async def expire() -> None:
            at = self.clock.now() + EXPIRE_S
            await self.lifecycle.cross(key, Expire(_EXPIRED, at), owner=owner, actor="delegation")

        await self.retries.run("end the session of a subtask", expire)

    @asynccontextmanager
    async def _limit_parallel(self, turn_id: str) -> AsyncGenerator[None]:
        """Limit the concurrent subtasks of a turn."""
        room, users = self._semaphores.get(turn_id, (asyncio.Semaphore(self.parallel_max), 0))
        self._semaphores[turn_id] = room, users + 1
        try:
            async with room:
                yield
        finally:
            room, users = self._semaphores.pop(turn_id)
            if users > 1:
                self._semaphores[turn_id] = room, users - 1

    async def _run_child(self, task: str, use: ToolUse) -> tuple[str, Outcome]:
        """Start or resume the subtask; return its session and outcome."""
        key, owner = key_of(use), use.ref.owner
        model = await self.store.read_inline(lambda uow: _read_model(uow, use.ref))
        options = TurnOptions(self.choices(use.rights.granted_model(model)))
        child = await self.store.read_inline(lambda uow: _find_child(uow, use.ref.session_id, key))
        if child is None:
            boundary = New(kind=SessionKind.SUBAGENT, parent=use.ref.session_id)
            opened = (await self.lifecycle.cross(key, boundary, owner=owner, actor="delegation")).ref
            assert opened is not None
            child = opened.session_id
        try:
            # The inbox drops duplicates of this update id, so a repeated call adds no message.
            # The child has the rights of the speaker, if it is one.
            inbound = Inbound(key, owner, task, update_id=key.chat, user=use.speaker)
            await self.lifecycle.accept(inbound, only_into=child)
        except KeyMoved:
            # Done before, or forgotten meanwhile: do not start it again in another session.
            return child, await self.store.read(lambda uow: _read_outcome(uow, child))
        return child, await self._outcome(key, child, options)

    async def _outcome(self, key: SessionKey, child: str, options: TurnOptions) -> Outcome:
        ended = await self.agent.answer(key, options)
        if ended is None:
            cut_off = await self.store.read_inline(lambda uow: uow.slots.live(child))
            ended = await self.agent.resume(cut_off.turn_id, options) if cut_off is not None else None
        if ended is not None:
            return Outcome(ended.text, ended.problem)
        return await self.store.read(lambda uow: _read_outcome(uow, child))

    async def _stop(self, work: asyncio.Task[tuple[str, Outcome]], use: ToolUse) -> None:
        """End the subtask with the waiting turn: stopped, or released for another process to resume."""
        key = key_of(use)
        here = await self.lifecycle.current(key)
        stopped = self.is_stopped(use.turn_id)
        if not (
            stopped
            and here is not None
            and self.agent.stop(here.session_id, "stopped: the turn that delegated this work was cancelled")
        ):
            work.cancel()
        await asyncio.wait({work}, timeout=STOP_S_MAX)
        if stopped and here is not None:
            child = here.session_id

            async def set_aside() -> None:
                await self._commit_released_turn(child)
                # A message that is still waiting must not start a turn.
                await self.lifecycle.cross(key, Suspend(close_memory=True), owner=use.ref.owner, actor="delegation")

            await self.retries.run("stop a subtask", set_aside)
            await self._end(use)

    async def _commit_released_turn(self, child: str) -> None:
        """Commit a child turn that was stopped while it began and was released, so that no process resumes it."""
        left = await self.store.read_inline(lambda uow: uow.slots.live(child))
        claim = await self.lifecycle.resume_turn(left.turn_id) if left is not None else None
        if claim is not None:
            texts = [Message(Role.USER, text) for text in claim.texts]
            await self.lifecycle.commit_turn(claim, texts, None, interrupted=True)


def _read_model(uow: UnitOfWork, ref: SessionRef) -> str:
    """Return the model name in the session's stored prompt; empty if there is no prompt yet."""
    prefix = uow.turns.prefix(ref.session_id)
    return decode_prompt(prefix.content).name if prefix is not None else ""


def _find_child(uow: UnitOfWork, parent: str, key: SessionKey) -> str | None:
    """Find the child session of a repeated call. An expired session has no binding, so search the lineage."""
    return next((child.id for child in uow.sessions.descendants(parent) if child.key == key), None)


def _read_outcome(uow: UnitOfWork, child: str) -> Outcome:
    """Read the outcome of a subtask that has already ended."""
    session = uow.sessions.get(child)
    turn = uow.turns.get(child, session.last_turn) if session is not None else None
    if turn is None:
        raise Erased("the task was taken over by another process or forgotten; its result is unknown")
    texts = [m.content for m in turn.messages if m.role is Role.ASSISTANT and not m.tool_calls]
    text = texts[-1] if texts else ""
    return Outcome(text, "" if turn.status is TurnStatus.DONE else "it was interrupted")
