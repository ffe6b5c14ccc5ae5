"""Running tools: concurrency, approval, errors and limits of results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, TELEGRAM

from everthread.agent.events import ApprovalRequest, ToolBegan
from everthread.domain.errors import (
    BadKey,
    ToolFailed,
)
from everthread.domain.model import (
    Role,
    SessionRef,
    ToolCall,
    TurnStatus,
)
from everthread.ports.tools import ToolUse

LOOK = ToolCall("c1", "look", "{}")


async def test_a_tool_runs_and_its_result_is_sent_back(tmp_path: Path) -> None:
    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return f"a tree at {arguments['where']}"

    call = ToolCall("c1", "look", '{"where": "home"}')
    async with AgentFixture(tmp_path, FakeModel([call, "I see"]), tools=(tool("look", look),)) as core:
        ended = await core.ask("what is there?")
        assert ended.text == "I see"
        assert "a tree at home" in core.model.sent()
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert [m.role for m in turn.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


async def test_s21_every_tool_call_gets_the_ref_of_its_own_turn(tmp_path: Path) -> None:
    """Run fifty conversations in one process: no tool gets the session of another."""
    seen: dict[str, list[SessionRef]] = {}

    async def whoami(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await asyncio.sleep(0)
        seen.setdefault(arguments["me"], []).append(use.ref)
        return use.ref.session_id

    def ask_twice(request: Any) -> object:
        me = request.tail[0].content
        if sum(m.role is Role.TOOL for m in request.tail) < 2:
            return ToolCall(f"c{len(request.tail)}", "whoami", f'{{"me": "{me}"}}')
        return request.tail[-1].content

    model = FakeModel([ask_twice], pause_s=0.001)
    keys = [TELEGRAM.__class__("main", "telegram", TELEGRAM.chat_type, str(n)) for n in range(50)]
    async with AgentFixture(tmp_path, model, tools=(tool("whoami", whoami),)) as core:
        ended = await asyncio.gather(*(core.ask(f"user{n}", key) for n, key in enumerate(keys)))
        for n, (key, end) in enumerate(zip(keys, ended, strict=True)):
            ref = end.committed.ref
            assert ref.key == key
            assert seen[f"user{n}"] == [ref, ref]
            assert end.text == ref.session_id


async def test_only_concurrency_safe_calls_run_together(tmp_path: Path) -> None:
    running: list[str] = []
    most: dict[str, int] = {}

    def noting(name: str) -> Any:
        async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
            running.append(name)
            await asyncio.sleep(0.02)
            most[name] = max(most.get(name, 0), len(running))
            running.remove(name)
            return "ok"

        return run

    calls = [ToolCall(f"r{n}", "read", "{}") for n in range(3)] + [ToolCall(f"w{n}", "write", "{}") for n in range(3)]
    tools = (tool("read", noting("read"), parallel=True), tool("write", noting("write")))
    async with AgentFixture(tmp_path, FakeModel([calls, "done"]), tools=tools) as core:
        await core.ask("go")
        assert most == {"read": 3, "write": 1}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("c", "fly", "{}"), "there is no tool 'fly'"),
        (ToolCall("c", "look", "{oops"), "not a JSON object"),
        (ToolCall("c", "look", "[1]"), "not a JSON object"),
        (ToolCall("c", "look", "x" * 1_000_001), "at most 1000000"),
        (ToolCall("c", "slow", "{}"), "did not answer within 0.01 s"),
        (ToolCall("c", "broken", "{}"), "RuntimeError('no screws left')"),
        (ToolCall("c", "failing", "{}"), "Error: the door is locked"),
        (ToolCall("c", "dumb", "{}"), "answered with int, not text"),
        (ToolCall("c", "axe", "{}"), "needs approval, and there is nobody to ask here"),
    ],
    ids=["unknown", "bad json", "no object", "huge", "slow", "raises", "fails", "no text", "dangerous"],
)
async def test_the_model_gets_the_error_of_a_tool(tmp_path: Path, call: ToolCall, told: str) -> None:
    async def slow(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await asyncio.sleep(5)
        return ""

    async def broken(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise RuntimeError("no screws left")

    async def failing(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise ToolFailed("the door is locked")

    async def dumb(arguments: Mapping[str, Any], use: ToolUse) -> Any:
        return 3

    tools = (
        tool("look", says_nothing),
        tool("slow", slow, timeout_s=0.01),
        tool("broken", broken),
        tool("failing", failing),
        tool("dumb", dumb),
        tool("axe", says_nothing, dangerous=True),
    )
    async with AgentFixture(tmp_path, FakeModel([call, "I see"]), tools=tools) as core:
        ended = await core.ask("go")
        assert (ended.text, ended.problem) == ("I see", "")
        assert told in core.model.sent()


async def test_a_dangerous_tool_runs_once_it_is_approved_or_allowed(tmp_path: Path) -> None:
    axe = tool("axe", says_nothing, dangerous=True)
    call = ToolCall("c", "axe", "{}")
    async with AgentFixture(tmp_path, FakeModel([call, "done"]), tools=(axe,)) as core:
        asked: list[ToolCall] = []

        async def approve(request: ApprovalRequest, ref: SessionRef) -> bool:
            asked.append(request.call)
            return True

        core.approve = approve
        await core.ask("go")
        assert asked == [call]
        assert any(isinstance(event, ToolBegan) for event in core.heard)
    async with AgentFixture(tmp_path, FakeModel([call, "done"]), tools=(axe,), allowed=frozenset({"axe"})) as core:
        await core.ask("go")
        assert any(isinstance(event, ToolBegan) for event in core.heard)


async def test_a_long_result_is_shortened(tmp_path: Path) -> None:
    async def book(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "begin" + "x" * 1_000_000 + "end"

    async with AgentFixture(
        tmp_path, FakeModel([ToolCall("c", "book", "{}"), "ok"]), tools=(tool("book", book),)
    ) as core:
        await core.ask("read")
        sent = core.model.requests[-1].tail[2].content
        assert len(sent) < 101_000
        assert sent.startswith("begin")
        assert sent.endswith("end")


async def test_the_number_of_calls_in_one_answer_is_limited(tmp_path: Path) -> None:
    calls = [ToolCall(f"c{n}", "look", "{}") for n in range(100)]
    async with AgentFixture(tmp_path, FakeModel([calls, "enough"]), tools=(tool("look", says_nothing),)) as core:
        assert (await core.ask("go")).text == "enough"
        assert sum(isinstance(event, ToolBegan) for event in core.heard) == 32


async def test_a_tool_that_cancels_itself_gets_a_result(tmp_path: Path) -> None:
    async def gone(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise asyncio.CancelledError

    async with AgentFixture(
        tmp_path, FakeModel([ToolCall("c", "gone", "{}"), "ok"]), tools=(tool("gone", gone),)
    ) as core:
        assert (await core.ask("go")).text == "ok"
        assert "cancelled itself" in core.model.sent()


async def test_s26_a_call_with_wrong_arguments_is_a_visible_error(tmp_path: Path) -> None:
    wrong: Any = str(CLI)
    async with AgentFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.agent.answer(wrong, core.options())
        core.choices = []
        ended = await core.ask("hello")
        assert "internal error" in ended.problem
        assert ended.committed.status is TurnStatus.INTERRUPTED


@pytest.mark.parametrize("arguments", ['{"a":' * 100_000, '{"a": "\ud83d"}', "[" * 100_000])
async def test_unreadable_arguments_are_reported_to_the_model(tmp_path: Path, arguments: str) -> None:
    model = FakeModel([ToolCall("c1", "look", arguments), "sorry"])
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        ended = await core.ask("look")
        assert (ended.text, ended.problem) == ("sorry", "")
        assert "not a JSON object" in core.model.sent()


async def test_a_long_unknown_tool_name_is_shortened_in_the_error(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ToolCall("c1", "x" * 1_000_000, "{}"), "sorry"])) as core:
        ended = await core.ask("look")
        (turn,) = await core.turns(ended.committed.ref.session_id)
        [told] = [message.content for message in turn.messages if message.role is Role.TOOL]
        assert "there is no tool" in told
        assert len(told) < 500


async def _late(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise TimeoutError("the database took too long")


async def _exits(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(("run", "told"), [(_late, "the database took too long"), (_exits, "SystemExit(3)")])
async def test_an_exception_of_a_tool_is_reported_with_its_text(tmp_path: Path, run: Any, told: str) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "sorry"]), tools=(tool("look", run),)) as core:
        assert (await core.ask("look")).text == "sorry"
        assert told in core.model.sent()
        assert "did not answer within" not in core.model.sent()
