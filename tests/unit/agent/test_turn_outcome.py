"""Turns that end early: time limit, internal errors, and tools that can not be stopped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, TELEGRAM

from everthread.agent.transcript import STOPPED
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.domain.model import (
    ToolCall,
)
from everthread.ports.tools import ToolUse

LOOK = ToolCall("c1", "look", "{}")


async def test_a_turn_has_a_time_limit(tmp_path: Path) -> None:
    limits = TurnLimits(turn_s=1.0)
    async with AgentFixture(tmp_path, FakeModel(["a b c d e f g h"], pause_s=0.4), turn_limits=limits) as core:
        ended = await core.ask("go")
        assert "limit of a turn" in ended.problem
        assert ended.text.startswith("a")
        assert core.model.cut_off == 1


async def test_an_error_of_a_client_ends_the_turn_and_not_the_conversation(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ZeroDivisionError("oops"), "fine"])) as core:
        ended = await core.ask("hello")
        assert "oops" in ended.problem
        assert (await core.ask("and now?")).text == "fine"


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_turn_running(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def stubborn(arguments: Mapping[str, Any], use: ToolUse) -> str:
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "I carry on"
        return ""

    model = FakeModel([ToolCall("c", "stubborn", "{}"), "never said"])
    async with AgentFixture(tmp_path, model, tools=(tool("stubborn", stubborn),)) as core:
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await begun.wait()
        core.agent.stop((await core.at(CLI)).session_id)
        ended = await turn
        assert ended is not None
        assert ended.problem == "stopped"
        assert len(model.requests) == 1


async def test_a_tool_that_never_ends_is_abandoned_soon_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.1)
    begun, released = asyncio.Event(), asyncio.Event()

    async def deaf(arguments: Mapping[str, Any], use: ToolUse) -> str:
        begun.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return "at last"

    async with AgentFixture(tmp_path, FakeModel([LOOK, "never said"]), tools=(tool("look", deaf),)) as core:
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await begun.wait()
        core.agent.stop((await core.at(CLI)).session_id)
        try:
            ended = await asyncio.wait_for(asyncio.shield(turn), 3.0)
        finally:
            released.set()
        assert ended is not None
        assert ended.problem == "stopped"
        (stored,) = await core.turns(ended.committed.ref.session_id)
        assert stored.messages[-1].content == STOPPED


async def test_details_of_an_internal_error_are_not_shown_to_remote_users(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ZeroDivisionError("/home/me/key"), "fine"])) as core:
        await core.say("hello", TELEGRAM)
        ended = await core.agent.answer(TELEGRAM, TurnOptions(core.choices, outbox=True))
        assert ended is not None
        assert "/home/me/key" in ended.problem
        assert ended.committed.reply is not None
        assert "internal error" in ended.committed.reply.text
        assert "/home/me/key" not in ended.committed.reply.text


async def _reports(scene: Callable[[], Awaitable[None]]) -> list[str]:
    """Collect asyncio's reports about tasks with unretrieved exceptions, which it would print to the terminal."""
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report["message"]))
    await scene()
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    return reports


async def test_an_abandoned_tool_ends_without_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.05)

    async def scene() -> None:
        ended = asyncio.Event()

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            for _ in range(20):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            ended.set()
            return "at last"

        limits = TurnLimits(turn_s=0.05)
        async with AgentFixture(tmp_path, FakeModel([LOOK]), tools=(tool("look", look),), turn_limits=limits) as core:
            assert "limit of a turn" in (await core.ask("look")).problem
            await ended.wait()
            await asyncio.sleep(0.1)

    assert await _reports(scene) == []
