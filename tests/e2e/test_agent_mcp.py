"""MCP servers that change, die or start late: the model sees changed tools from the next turn on, not within one."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import McpServer, ProviderSettings, Settings
from everthread.domain.model import ChatType, Inbound, SessionKey, ToolCall
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

FIXTURES = Path(__file__).parents[1] / "servers" / "mcp_fixtures"
KEY = SessionKey("main", "cli", ChatType.DM, "1")


def calls_then_answers(*tools: str) -> list[Any]:
    """Script that calls each tool in a turn of its own, and then answers without tools."""
    lines: list[Any] = []
    for number, name in enumerate(tools):
        lines += [Say(calls=(ToolCall(f"call_{number}", name, "{}"),)), Say("done")]
    return [*lines, *[Say("fine")] * 9]


@asynccontextmanager
async def talking(
    home: Path, server: ModelServer, *command: str, problems: Sequence[str] = ()
) -> AsyncIterator[Runtime]:
    given = McpServer(sys.executable, (str(FIXTURES / command[0]), *command[1:]), trust=True)
    settings = Settings(
        home,
        model="stub/one",
        auxiliary_model="",
        providers={"stub": ProviderSettings("openai_compat", server.base_url)},
        mcp_servers={"a": given},
    )
    async with Runtime(settings) as runtime:
        told = await runtime.ready()
        assert len(told) == len(problems), told
        assert all(words in line for words, line in zip(problems, told, strict=True)), told
        # A title would add a request.
        first = await ask(runtime, "hello")
        await runtime.lifecycle.rename(first, "a title", owner="me")
        yield runtime


async def ask(runtime: Runtime, text: str) -> str:
    await runtime.lifecycle.accept(Inbound(KEY, "me", text))
    ended = await runtime.agent.answer(KEY, TurnOptions(runtime.choices()))
    assert ended is not None
    assert not ended.problem
    return ended.committed.ref.session_id


async def prefix_number(runtime: Runtime, session_id: str) -> int:
    prefix = await runtime.store.read(lambda uow: uow.turns.prefix(session_id))
    assert prefix is not None
    return prefix.number


def of_turns(server: ModelServer) -> list[dict[str, Any]]:
    """Return the requests, without those for a title."""
    return [body for body in map(json.loads, server.requests) if "Name the conversation" not in str(body)]


def tools(request: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in request["tools"]}


def script(*lines: Any) -> Any:
    left = list(lines)
    return lambda request: Say("Title") if "Name the conversation" in str(request) else left.pop(0)


async def test_announced_tools_are_offered_from_the_next_turn_on(tmp_path: Path) -> None:
    lines = [Say("hi"), *calls_then_answers("mcp__a__change", "mcp__a__brand_new")]
    async with (
        ModelServer(script(*lines)) as server,
        talking(tmp_path, server, "with_sdk.py") as runtime,
    ):
        session_id = await ask(runtime, "change yourself")
        _, calling, after_the_call = of_turns(server)
        assert "mcp__a__brand_new" not in tools(calling)
        assert after_the_call["tools"] == calling["tools"], "the tool list changed within a turn"
        assert await prefix_number(runtime, session_id) == 1
        await ask(runtime, "now use it")
        *_, calling, after_the_call = of_turns(server)
        assert "mcp__a__brand_new" in tools(calling)
        assert after_the_call["messages"][-1]["content"].startswith("brand_new:")
        assert await prefix_number(runtime, session_id) == 2
        await ask(runtime, "and go on")
        assert of_turns(server)[-1]["tools"] == calling["tools"]
        assert await prefix_number(runtime, session_id) == 2, "the prefix changed again"


async def test_tools_of_a_server_that_starts_late_are_offered_once_it_is_up(tmp_path: Path) -> None:
    file = tmp_path / "told"
    lines = [Say("hi"), *calls_then_answers()]
    async with (
        ModelServer(script(*lines)) as server,
        talking(
            tmp_path / "home", server, "misbehaving.py", "as_told", str(file), problems=["nobody has told me"]
        ) as runtime,
    ):
        assert "mcp__a__echo" not in tools(of_turns(server)[-1])
        file.write_text("")
        await runtime.clock.sleep(1.1)  # A server that is away is left alone for a second.
        session_id = await ask(runtime, "is it there?")
        assert "mcp__a__echo" in tools(of_turns(server)[-1])
        assert await prefix_number(runtime, session_id) == 2


async def test_the_tools_of_a_restarted_server_are_requested_again(tmp_path: Path) -> None:
    file = tmp_path / "told"
    file.write_text("old")
    lines = [Say("hi"), *calls_then_answers("mcp__a__die")]
    async with (
        ModelServer(script(*lines)) as server,
        talking(tmp_path / "home", server, "misbehaving.py", "as_told", str(file)) as runtime,
    ):
        file.write_text("new")
        session_id = await ask(runtime, "kill it")
        _, calling, after_the_call = of_turns(server)
        assert "mcp__a__old" in tools(calling)
        assert after_the_call["tools"] == calling["tools"]
        await ask(runtime, "and now?")
        offered = tools(of_turns(server)[-1])
        assert "mcp__a__new" in offered
        assert "mcp__a__old" not in offered
        assert await prefix_number(runtime, session_id) == 2


async def test_a_server_that_stays_down_keeps_its_tools_and_the_prompt_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "told"
    file.write_text("")
    lines = [Say("hi"), *calls_then_answers("mcp__a__die", "mcp__a__echo")]
    async with (
        ModelServer(script(*lines)) as server,
        talking(tmp_path / "home", server, "misbehaving.py", "as_told", str(file)) as runtime,
    ):
        file.unlink()
        await ask(runtime, "kill it")
        session_id = await ask(runtime, "call it")
        assert "is not running" in of_turns(server)[-1]["messages"][-1]["content"]
        await ask(runtime, "go on")
        assert all(request["tools"] == of_turns(server)[0]["tools"] for request in of_turns(server))
        assert await prefix_number(runtime, session_id) == 1


async def test_calling_ready_twice_starts_one_process_per_server(tmp_path: Path) -> None:
    pid = Say(calls=(ToolCall("c", "mcp__a__pid", "{}"),))
    async with (
        ModelServer(script(Say("hi"), pid, Say("one"), pid, Say("two"))) as server,
        talking(tmp_path, server, "misbehaving.py") as runtime,
    ):
        await ask(runtime, "which?")
        assert await runtime.ready() == ()
        await ask(runtime, "and now?")
        pids = [m["content"] for m in of_turns(server)[-1]["messages"] if m["role"] == "tool"]
        assert len(pids) == 2
        assert pids[0] == pids[1]
