"""Stop and steer a running turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, until

from everthread.agent.events import Steered, TurnBegan
from everthread.agent.tools.runner import Toolbox
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.domain.model import (
    InboxRow,
    InboxState,
    Role,
    SessionRef,
    ToolCall,
    TurnStatus,
)
from everthread.lifecycle import CommittedTurn, TurnClaim
from everthread.ports.tools import ToolUse

LOOK = ToolCall("c1", "look", "{}")


async def test_a_turn_ends_after_its_maximum_of_steps(tmp_path: Path) -> None:
    limits = TurnLimits(iterations=3)
    async with AgentFixture(
        tmp_path, FakeModel([LOOK]), tools=(tool("look", says_nothing),), turn_limits=limits
    ) as core:
        ended = await core.ask("go")
        assert "3 steps" in ended.problem
        assert ended.committed.status is TurnStatus.INTERRUPTED
        core.model.lines = ["fresh again"]
        assert (await core.ask("still there?")).text == "fresh again"


async def test_a_message_can_steer_a_running_turn(tmp_path: Path) -> None:
    going, steered = asyncio.Event(), asyncio.Event()

    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        going.set()
        await steered.wait()
        return "a tree"

    async with AgentFixture(tmp_path, FakeModel([LOOK, "left then"]), tools=(tool("look", look),)) as core:
        await core.say("which way?")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await going.wait()
        row = await core.say("rather left")
        assert core.agent.steer((await core.at(CLI)).session_id, row.id)
        steered.set()
        ended = await turn
        assert ended is not None
        assert Steered("rather left", row.id) in core.heard
        assert "rather left" in core.model.sent()
        (stored,) = await core.turns(ended.committed.ref.session_id)
        assert [m.content for m in stored.messages if m.role is Role.USER] == ["which way?", "rather left"]
        after = await core.store.read(lambda uow: uow.inbox.get(row.id))
        assert after is not None
        assert after.state is InboxState.DONE
        assert await core.agent.answer(CLI, core.options()) is None


async def test_a_message_that_is_too_late_to_steer_starts_the_next_turn(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["a b c", "to the left"], pause_s=0.01)) as core:
        await core.say("which way?")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        row = await core.say("rather left")
        core.agent.steer((await core.at(CLI)).session_id, row.id)
        await turn
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"


async def test_a_message_after_the_last_step_starts_the_next_turn(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"]), turn_limits=TurnLimits(iterations=1)) as core:

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        assert "1 steps" in ended.problem
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"
        first, second = await core.turns(ended.committed.ref.session_id)
        assert (first.user_text, second.user_text) == ("which way?", "rather left")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_message_during_the_commit_starts_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async with AgentFixture(tmp_path, FakeModel(["straight on", "to the left"])) as core:
        commit = core.lifecycle.commit_turn
        steered: list[bool] = []

        async def steer(ref: SessionRef) -> None:
            row = await core.say("rather left")
            steered.append(core.agent.steer(ref.session_id, row.id))

        async def steer_and_commit(ticket: TurnClaim, *given: Any, **more: Any) -> CommittedTurn:
            if when == "before" and not steered:
                await steer(ticket.ref)
            committed = await commit(ticket, *given, **more)
            if when == "after" and not steered:
                await steer(ticket.ref)
            return committed

        monkeypatch.setattr(core.lifecycle, "commit_turn", steer_and_commit)
        assert (await core.ask("which way?")).text == "straight on"
        assert steered == [False], "no running turn could take the message"
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"
        assert [turn.user_text for turn in await core.turns(ended.committed.ref.session_id)] == [
            "which way?",
            "rather left",
        ]


@pytest.mark.parametrize("stops", ["before", "after"])
async def test_a_turn_stopped_while_it_takes_a_message_includes_or_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"])) as core:
        steer = core.lifecycle.steer

        async def steer_and_stop(ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
            if stops == "before":
                core.agent.stop(ticket.ref.session_id)
                await asyncio.sleep(0)
            row = await steer(ticket, inbox_id)
            core.agent.stop(ticket.ref.session_id)
            return row

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        monkeypatch.setattr(core.lifecycle, "steer", steer_and_stop)
        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        monkeypatch.undo()
        following = await core.agent.answer(CLI, core.options())
        turns = await core.turns(ended.committed.ref.session_id)
        said = [m.content for turn in turns for m in turn.messages if m.role is Role.USER]
        assert said == ["which way?", "rather left"]
        assert (following is None) == (len(turns) == 1)


@pytest.mark.parametrize("slow", ["before", "after"])
async def test_a_message_is_not_lost_if_a_stop_comes_while_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.05)
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"])) as core:
        steer = core.lifecycle.steer

        async def steer_slowly(ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
            core.agent.stop(ticket.ref.session_id)
            if slow == "before":
                await asyncio.sleep(0.3)
            row = await steer(ticket, inbox_id)
            if slow == "after":
                await asyncio.sleep(0.3)
            return row

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        monkeypatch.setattr(core.lifecycle, "steer", steer_slowly)
        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        await asyncio.sleep(0.4)
        await core.agent.answer(CLI, core.options())
        turns = await core.turns(ended.committed.ref.session_id)
        said = [m.content for turn in turns for m in turn.messages if m.role is Role.USER]
        assert said == ["which way?", "rather left"]


async def test_a_turn_can_be_stopped_from_its_first_event(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one two three"])) as core:

        def stop(event: object) -> None:
            if isinstance(event, TurnBegan):
                assert core.agent.stop(event.ref.session_id)

        await core.say("hello")
        ended = await core.agent.answer(CLI, TurnOptions(core.choices, stop))
        assert ended is not None
        assert (ended.text, ended.problem) == ("", "stopped")
        assert core.model.requests == []
