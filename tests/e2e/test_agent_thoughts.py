"""Reasoning of models that require it back after a tool call: within a turn, after a kill, and with a fallback model.

The stub server refuses the requests that the real servers refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import tool
from tests.runtime import until

from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import ProviderSettings, Settings
from everthread.domain.model import ChatType, Inbound, Role, SessionKey, ToolCall, TurnStatus
from everthread.testing.model_server.replies import End, Fail, ReasoningFormat, Say
from everthread.testing.model_server.server import ModelServer

KEY = SessionKey("main", "cli", ChatType.DM, "1")
LOOK = Say("", (ToolCall("c1", "look", '{"n": 1}'), ToolCall("c2", "look", '{"n": 2}')), reasoning="Both, I think.")
AGAIN = Say("", (ToolCall("c3", "look", '{"n": 3}'),), reasoning="One more.")


def kind_of(form: ReasoningFormat) -> Any:
    return "anthropic" if form is ReasoningFormat.BLOCKS else "openai_compat"


def script(*lines: Any) -> Any:
    left = list(lines)

    def reply(request: Any) -> Any:
        if "Name the conversation" in str(request):
            return Say("Title")
        return left.pop(0) if left else Fail(401, "the script has ended")

    return reply


@asynccontextmanager
async def agent(
    home: Path, *servers: tuple[ModelServer, Any], looked: list[str] | None = None
) -> AsyncIterator[Runtime]:
    async def look(arguments: Any, use: Any) -> str:
        if looked is not None:
            looked.append(use.call_id)
        return f"saw {arguments['n']}"

    names = [f"stub{number}" for number in range(len(servers))]
    settings = Settings(
        home,
        model="stub0/one",
        fallback_models=tuple(f"{name}/one" for name in names[1:]),
        providers={
            name: ProviderSettings(kind, server.base_url) for name, (server, kind) in zip(names, servers, strict=True)
        },
    )
    async with Runtime(settings, tools=(tool("look", look),)) as runtime:
        await runtime.ready()
        yield runtime


@pytest.mark.parametrize("form", ReasoningFormat)
async def test_reasoning_is_sent_back_within_a_turn_and_not_after_it(tmp_path: Path, form: ReasoningFormat) -> None:
    async with (
        ModelServer(script(LOOK, AGAIN, Say("done"), Say("fine")), thinks=form) as server,
        agent(tmp_path, (server, kind_of(form))) as runtime,
    ):
        for text, answer in (("look twice", "done"), ("and now?", "fine")):
            await runtime.lifecycle.accept(Inbound(KEY, "me", text))
            ended = await runtime.agent.answer(KEY, TurnOptions(runtime.choices()))
            assert ended is not None
            assert (ended.text, ended.problem) == (answer, "")
        assert b"Both, I think." not in server.requests[-1]
        turn = await runtime.store.read(lambda uow: uow.turns.get(ended.committed.ref.session_id, 1))
        assert turn is not None
        assert [message.reasoning for message in turn.messages if message.role is Role.ASSISTANT][:2] == [
            "Both, I think.",
            "One more.",
        ]
        assert all(message.thought is None for message in turn.messages)


@pytest.mark.parametrize("form", ReasoningFormat)
async def test_an_interrupted_turn_resumes_with_its_reasoning(tmp_path: Path, form: ReasoningFormat) -> None:
    looked: list[str] = []
    lines = [LOOK, AGAIN, Say("cut", end=End.STALL), Say("done")]
    async with ModelServer(script(*lines), thinks=form) as server:
        async with agent(tmp_path, (server, kind_of(form)), looked=looked) as runtime:
            await runtime.lifecycle.accept(Inbound(KEY, "me", "look twice"))
            answering = asyncio.ensure_future(runtime.agent.answer(KEY, TurnOptions(runtime.choices())))
            await until(lambda: len(server.requests) == 3)
            answering.cancel()
            await asyncio.wait({answering})
        async with agent(tmp_path, (server, kind_of(form)), looked=looked) as runtime:
            (turn_id,) = await runtime.lifecycle.recover()
            ended = await runtime.agent.resume(turn_id, TurnOptions(runtime.choices()))
            assert ended is not None
            assert (ended.text, ended.problem) == ("done", "")
            assert ended.committed.status is TurnStatus.DONE
            assert looked == ["c1", "c2", "c3"], "a finished tool call ran again"


async def test_the_reasoning_of_one_model_is_not_sent_to_another(tmp_path: Path) -> None:
    async with (
        ModelServer(script(LOOK), thinks=ReasoningFormat.DETAILS) as first,
        ModelServer(script(Say("from the second"))) as second,
        agent(tmp_path, (first, "openai_compat"), (second, "openai_compat")) as runtime,
    ):
        await runtime.lifecycle.accept(Inbound(KEY, "me", "look twice"))
        ended = await runtime.agent.answer(KEY, TurnOptions(runtime.choices()))
        assert ended is not None
        assert ended.text == "from the second"
        assert ended.model == "stub1/one"
        assert b"I think" not in second.requests[0]
        assert b"sig-" not in second.requests[0]
        assert b"saw 1" in second.requests[0]
