"""A turn begins no effect after a boundary has cancelled it, wherever the boundary was crossed.

The boundaries here are crossed without a call of `Agent.stop`, as if in another process. Two real processes do so in
tests/e2e/agent/test_turn_guard.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, CoreFixture, until

from everthread.agent.delegation import Delegation
from everthread.agent.events import ApprovalRequest, ToolBegan
from everthread.agent.store_retry import StoreRetries
from everthread.agent.tools.runner import Toolbox
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn_guard import TurnGuard
from everthread.agent.turn_options import TurnLimits
from everthread.domain.boundary import Boundary, New, Rewind
from everthread.domain.errors import Fenced, ModelUnavailable
from everthread.domain.model import (
    Inbound,
    InboxState,
    Role,
    SessionRef,
    ToolCall,
    TurnStatus,
)
from everthread.lifecycle import ForgetSession
from everthread.plugins import hookimpl
from everthread.ports.memory import RecallItem
from everthread.ports.tools import Tool, ToolUse

SLOW = "slow " * 1000
LOOK, AXE = ToolCall("c1", "look", "{}"), ToolCall("c2", "axe", "{}")
BOUNDARIES = pytest.mark.parametrize(
    ("boundary", "status"), [(New(), TurnStatus.LATE), (Rewind(1), TurnStatus.HIDDEN)], ids=["new", "undo"]
)


class Elsewhere(AgentFixture):
    """Agent fixture whose tools cross a boundary without the agent's knowledge."""

    boundary: Boundary = New()

    async def leave(self) -> None:
        crossing = await self.lifecycle.cross(CLI, self.boundary, owner=ME)
        assert crossing.cancelled

    def looking(self, **more: Any) -> Tool:
        """A tool that is in flight while the boundary is crossed."""

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            await self.leave()
            return "a tree"

        return tool("look", look, **more)


@BOUNDARIES
async def test_neither_a_tool_nor_the_model_is_called_after_a_boundary(
    tmp_path: Path, boundary: Boundary, status: TurnStatus
) -> None:
    async with Elsewhere(tmp_path, FakeModel([[LOOK, AXE], "done"])) as core:
        core.boundary = boundary
        core.toolbox = Toolbox((core.looking(), tool("axe", says_nothing)))
        ended = await core.ask("go")
        assert [event.call for event in core.heard if isinstance(event, ToolBegan)] == [LOOK]
        assert len(core.model.requests) == 1
        assert ended.committed.status is status
        assert "elsewhere" in ended.problem
        stored = await core.store.read(lambda uow: uow.turns.get(ended.committed.ref.session_id, 1))
        assert stored is not None
        results = {m.tool_call_id: m.content for m in stored.messages if m.role is Role.TOOL}
        assert results[LOOK.id] == "a tree", "the result of the call in flight is kept"


@BOUNDARIES
async def test_no_tool_runs_after_a_boundary_that_a_plugin_was_slower_than(
    tmp_path: Path, boundary: Boundary, status: TurnStatus
) -> None:
    ran: list[str] = []

    async def axe(arguments: Mapping[str, Any], use: ToolUse) -> str:
        ran.append(use.call_id)
        return "chips"

    class Slow:
        """A plugin that takes so long before the call that a boundary is crossed meanwhile."""

        @hookimpl
        async def pre_tool_call(self) -> None:
            await core.leave()

    core = Elsewhere(tmp_path, FakeModel([AXE, "done"]), plugins=(Slow(),))
    async with core:
        core.boundary = boundary
        core.toolbox = Toolbox((tool("axe", axe),))
        assert (await core.ask("go")).committed.status is status
        assert ran == []


@BOUNDARIES
async def test_the_model_is_not_called_again_after_a_boundary(
    tmp_path: Path, boundary: Boundary, status: TurnStatus
) -> None:
    async with Elsewhere(tmp_path, FakeModel([LOOK, "done"])) as core:
        core.boundary = boundary
        core.toolbox = Toolbox((core.looking(),))
        assert (await core.ask("go")).committed.status is status
        assert len(core.model.requests) == 1


async def test_no_question_is_asked_after_a_boundary(tmp_path: Path) -> None:
    asked: list[ToolCall] = []

    async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
        asked.append(request.call)
        return True

    async with Elsewhere(tmp_path, FakeModel([[LOOK, AXE], "done"])) as core:
        core.toolbox = Toolbox((core.looking(), tool("axe", says_nothing, dangerous=True)))
        core.approve = approve
        assert (await core.ask("go")).committed.status is TurnStatus.LATE
        assert asked == []


async def test_questions_of_parallel_calls_are_asked_one_after_another_until_a_boundary(tmp_path: Path) -> None:
    calls = [ToolCall(f"c{n}", "axe", "{}") for n in range(3)]
    asked: list[ToolCall] = []
    async with Elsewhere(tmp_path, FakeModel([calls, "done"])) as core:

        async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
            asked.append(request.call)
            if len(asked) == 2:
                await core.leave()
            return False

        core.toolbox = Toolbox((tool("axe", says_nothing, dangerous=True, parallel=True),))
        core.approve = approve
        assert (await core.ask("go")).committed.status is TurnStatus.LATE
        assert asked == calls[:2]


async def test_an_approved_call_is_not_run_after_a_boundary(tmp_path: Path) -> None:
    async with Elsewhere(tmp_path, FakeModel([AXE, "done"])) as core:

        async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
            await core.leave()
            return True

        core.toolbox = Toolbox((tool("axe", says_nothing, dangerous=True),))
        core.approve = approve
        assert (await core.ask("go")).committed.status is TurnStatus.LATE
        assert not any(isinstance(event, ToolBegan) for event in core.heard)


@pytest.mark.parametrize("fallback", [False, True])
async def test_a_failed_model_call_is_not_retried_after_a_boundary(tmp_path: Path, fallback: bool) -> None:
    async with Elsewhere(tmp_path, FakeModel()) as core:
        other = FakeModel(["I can"])

        class Failing(FakeModel):
            async def stream(self, request: Any) -> Any:
                self.requests.append(request)
                await core.leave()
                raise ModelUnavailable("down", retry_after_s=3600 if fallback else None)
                yield

        failing = Failing()
        core.choices = [failing.choice(), other.choice("fake/two")]
        assert (await core.ask("go")).committed.status is TurnStatus.LATE
        assert (len(failing.requests), other.requests) == (1, [])


async def test_no_memory_is_recalled_after_a_boundary(tmp_path: Path) -> None:
    recalled: list[str] = []
    diary = AsyncDiary()

    async def recalls(query: str, ref: SessionRef) -> list[RecallItem]:
        recalled.append(query)
        return []

    class LeavesFirst(Elsewhere):
        async def _tools(self, ref: SessionRef) -> SessionTools:
            await self.leave()
            return await super()._tools(ref)

    diary.recalls = recalls
    async with LeavesFirst(tmp_path, FakeModel(), diary) as core:
        ended = await core.ask("go")
        assert (ended.committed.status, recalled, core.model.requests) == (TurnStatus.LATE, [], [])


async def test_a_turn_is_not_announced_after_a_boundary_during_the_recall(tmp_path: Path) -> None:
    announced: list[str] = []

    class Diary(AsyncDiary):
        async def on_turn_start(self, message: str, *, ref: SessionRef) -> None:
            announced.append(message)

    diary = Diary()
    async with Elsewhere(tmp_path, FakeModel(), diary) as core:

        async def recalls(query: str, ref: SessionRef) -> list[RecallItem]:
            if query == "go":
                await core.leave()
            return []

        diary.recalls = recalls
        assert (await core.ask("go")).committed.status is TurnStatus.LATE
        await core.ask("again")
        await until(lambda: announced)
        assert announced == ["again"]


async def test_a_message_does_not_steer_a_turn_after_a_boundary(tmp_path: Path) -> None:
    async with Elsewhere(tmp_path, FakeModel([LOOK, "to the left"])) as core:

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            await core.leave()
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        core.toolbox = Toolbox((tool("look", look),))
        assert (await core.ask("which way?")).committed.status is TurnStatus.LATE
        (waiting,) = await core.store.read(lambda uow: uow.inbox.waiting(CLI))
        assert (waiting.inbound.text, waiting.state) == ("rather left", InboxState.WAITING)
        assert (await core.agent.answer(CLI, core.options())) is not None


async def test_an_interrupted_call_is_not_resumed_after_a_boundary(tmp_path: Path) -> None:
    resumed: list[str] = []

    async def work(arguments: Mapping[str, Any], use: ToolUse) -> str:
        resumed.append(use.call_id)
        return "done"

    async with AgentFixture(tmp_path) as dead:
        await dead.say("go")
        claim = await dead.lifecycle.begin_turn(CLI)
        assert claim is not None
        await dead.lifecycle.start_tool(claim, "c1", "work", "{}")

    class LeavesFirst(Elsewhere):
        async def _tools(self, ref: SessionRef) -> SessionTools:
            await self.leave()
            return await super()._tools(ref)

    limits = TurnLimits(recall_s=0.0)
    async with LeavesFirst(tmp_path, tools=(tool("work", work, goes_on=True),), turn_limits=limits) as core:
        await core.later(3600)
        (turn_id,) = await core.lifecycle.recover()
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert (ended.committed.status, resumed) == (TurnStatus.LATE, [])


async def test_a_turn_whose_session_changed_its_generation_is_cancelled(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "done"])) as core:

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            session = await core.session(use.ref.session_id)
            await core.store.write(lambda uow: uow.sessions.renew(session.replace(generation=session.generation + 1)))
            return "a tree"

        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("go")
        assert (ended.committed.status, len(core.model.requests)) == (TurnStatus.INTERRUPTED, 1)


async def test_delegated_work_begins_nothing_after_a_boundary_of_the_turn_that_waits_for_it(tmp_path: Path) -> None:
    task = ToolCall("d1", "delegate", '{"task": "count the trees"}')
    child = FakeModel([[LOOK, AXE], "three"])
    cut: list[str] = []

    async def axe(arguments: Mapping[str, Any], use: ToolUse) -> str:
        cut.append(use.call_id)
        return "cut"

    async with Elsewhere(tmp_path, FakeModel([task, "done"])) as core:
        async with AgentFixture(tmp_path, child, tools=(core.looking(), tool("axe", axe))) as helper:
            delegation = Delegation(
                core.store,
                core.lifecycle,
                helper.agent,
                lambda name: helper.choices,
                core.agent.is_stopped,
                core.clock,
                parallel_max=1,
                retries=StoreRetries(core.store, core.clock, "delegation"),
            )
            core.toolbox = Toolbox((delegation.tool(),))
            ended = await core.ask("go")
            assert (ended.committed.status, len(core.model.requests)) == (TurnStatus.LATE, 1)
            assert (len(child.requests), cut) == (1, [])


async def test_a_stopped_turn_begins_nothing_even_if_no_boundary_cancelled_it(tmp_path: Path) -> None:
    stops: list[str] = []
    async with AgentFixture(tmp_path) as core:
        await core.say("go")
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        is_stopped = False
        guard = TurnGuard(core.lifecycle, claim, stops.append, lambda: is_stopped)
        await guard.check()
        is_stopped = True
        with pytest.raises(asyncio.CancelledError):
            await guard.check()
        is_stopped = False
        await core.lifecycle.forget(ForgetSession(claim.ref.session_id), owner=ME)
        with pytest.raises(Fenced):
            await guard.check()
        assert stops == []


# --- The wake-up -----------------------------------------------------------------------------------------------------


@BOUNDARIES
async def test_a_boundary_in_another_process_cancels_the_call_in_flight(
    tmp_path: Path, boundary: Boundary, status: TurnStatus
) -> None:
    async with (
        AgentFixture(tmp_path, FakeModel([SLOW], pause_s=0.05)) as core,
        CoreFixture(tmp_path) as other,
    ):
        core.lanes.watch(core.agent.stop_cancelled)
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        await other.lifecycle.cross(CLI, boundary, owner=ME)
        async with asyncio.timeout(5):
            ended = await turn
        assert ended is not None
        assert (ended.committed.status, core.model.cut_off) == (status, 1)
        assert "elsewhere" in ended.problem


async def test_forgetting_the_session_in_another_process_cancels_the_call_in_flight(tmp_path: Path) -> None:
    async with (
        AgentFixture(tmp_path, FakeModel([SLOW], pause_s=0.05)) as core,
        CoreFixture(tmp_path) as other,
    ):
        core.lanes.watch(core.agent.stop_cancelled)
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        await other.lifecycle.forget(ForgetSession((await core.at(CLI)).session_id), owner=ME)
        async with asyncio.timeout(5):
            assert await turn is None
        assert core.model.cut_off == 1


async def test_commits_of_other_processes_do_not_disturb_a_turn(tmp_path: Path) -> None:
    async with (
        AgentFixture(tmp_path, FakeModel(["one two three four"], pause_s=0.03)) as core,
        CoreFixture(tmp_path) as other,
    ):
        core.lanes.watch(core.agent.stop_cancelled)
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        while not turn.done():
            await other.lifecycle.cross(TELEGRAM, New(), owner=ME)
            await asyncio.sleep(0.01)
        ended = await turn
        assert ended is not None
        assert (ended.text, ended.problem) == ("one two three four", "")


async def test_a_turn_is_cancelled_only_once(tmp_path: Path) -> None:
    """A second cancellation would interrupt the end of the call in flight."""
    released, cleaned = asyncio.Event(), asyncio.Event()
    async with AgentFixture(tmp_path, FakeModel([LOOK, "done"])) as core:
        core.lanes.watch(core.agent.stop_cancelled)

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            await core.lifecycle.cross(CLI, New(), owner=ME)
            try:
                await asyncio.Event().wait()
            finally:
                released.set()
                for _ in range(10):
                    # Each is noticed as a change, after which the turn is looked at again.
                    await core.lifecycle.accept(Inbound(CLI, "somebody else", "hello"))
                    await asyncio.sleep(0.02)
                cleaned.set()
            return "a tree"

        core.toolbox = Toolbox((tool("look", look),))
        async with asyncio.timeout(5):
            ended = await core.ask("go")
        assert ended.committed.status is TurnStatus.LATE
        assert released.is_set()
        assert cleaned.is_set()
