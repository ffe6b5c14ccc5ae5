"""The whole agent as wired by `Runtime`, with a real model server on loopback that records the requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import until

from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import ProviderSettings, ReviewSettings, Settings
from everthread.domain.boundary import New
from everthread.domain.model import ChatType, Inbound, SessionKey, ToolCall, TurnStatus
from everthread.memory.recall import FENCE
from everthread.ports.memory import MemoryProvider
from everthread.testing.model_server.replies import Fail, Say
from everthread.testing.model_server.server import ModelServer, Script

KEY = SessionKey("main", "cli", ChatType.DM, "1")
ME = "me"
TURNS = 30


@asynccontextmanager
async def agent(home: Path, server: ModelServer, kind: Any = "openai_compat", **more: Any) -> AsyncIterator[Runtime]:
    # Disable reviews, which run at any time: most tests inspect the requests of turns.
    more.setdefault("review", ReviewSettings(every_turns=0))
    settings = Settings(home, model="stub/one", providers={"stub": ProviderSettings(kind, server.base_url)}, **more)
    async with Runtime(settings) as runtime:
        assert await runtime.ready() == ()
        yield runtime


async def ask(runtime: Runtime, text: str, key: SessionKey = KEY, owner: str = ME) -> str:
    await runtime.lifecycle.accept(Inbound(key, owner, text))
    ended = await runtime.agent.answer(key, TurnOptions(runtime.choices()))
    assert ended is not None
    return ended.text or ended.problem


def notes_now_and_then() -> Script:
    """Script that writes a note first on every third message."""
    asked: set[str] = set()

    def script(request: Any) -> Say:
        said = str(request)
        number = max((n for n in range(TURNS) if f"message number {n} " in said), default=1)
        if "Name the conversation" not in said and number % 3 == 0 and f"{number}" not in asked:
            asked.add(f"{number}")
            note = {"action": "add", "target": "memory", "content": f"The number {number} came up."}
            return Say(calls=(ToolCall(f"call_{number}", "memory", json.dumps(note)),))
        return Say(f"You said {number}.", chunks=3)

    return script


@pytest.mark.parametrize("kind", ["openai_compat", "anthropic"])
async def test_every_request_starts_with_the_bytes_of_the_previous_one(tmp_path: Path, kind: str) -> None:
    """Run thirty turns with tools, notes and recall: each request repeats the previous one up to the newest message."""
    review = ReviewSettings(every_turns=10)
    async with ModelServer(notes_now_and_then()) as server, agent(tmp_path, server, kind, review=review) as runtime:
        await ask(runtime, "The lighthouse of message numbers is green.", SessionKey("main", "cli", ChatType.DM, "0"))
        for number in range(TURNS):
            await ask(runtime, f"message number {number} about the lighthouse")
        bodies = [body for body in server.requests if b"message number 0 " in body and b"Name the conv" not in body]
    reviews = [body for body in bodies if b"[A review." in body]
    assert len(reviews) >= 2, "fewer than two reviews ran"
    assert len(bodies) - len(reviews) == TURNS + TURNS // 3
    assert any(FENCE.encode() in body.rpartition(b"message number")[2] for body in bodies), "nothing was recalled"
    for number in range(TURNS):
        mine = next(body for body in bodies if f"message number {number} ".encode() in body)
        until_said = mine.rindex(f"message number {number} about the lighthouse".encode()) + 20
        for later in bodies[bodies.index(mine) :]:
            assert later[:until_said] == mine[:until_said], f"turn {number} was sent differently later"


async def test_recall_finds_earlier_turns_in_the_next_conversation_with_their_source(tmp_path: Path) -> None:
    async with ModelServer(lambda request: Say("Noted.")) as server:
        async with agent(tmp_path, server) as runtime:
            await ask(runtime, "My dog is called Bruno and he is afraid of thunder.")
            first = await runtime.lifecycle.current(KEY)
            assert first is not None
            await runtime.lifecycle.cross(KEY, New(), owner=ME)
            await ask(runtime, "What was the name of my dog again?")
            body = server.requests[-1].decode()
            assert "My dog is called Bruno" in body
            assert f"session {first.session_id}, turn 1" in body
            await ask(runtime, "And what do I like?", KEY, owner="somebody else")
            assert "Bruno" not in server.requests[-1].decode()
        # Another process and another chat, but the same person.
        async with agent(tmp_path, server) as runtime:
            await ask(runtime, "What is my dog afraid of?", SessionKey("main", "cli", ChatType.DM, "2"))
            assert "afraid of thunder" in server.requests[-1].decode()


async def test_a_note_reaches_recall_at_once_and_the_prompt_of_the_next_conversation(tmp_path: Path) -> None:
    note = json.dumps({"action": "add", "target": "user", "content": "Allergic to walnuts."})
    replies = iter([Say(calls=(ToolCall("c1", "memory", note),)), Say("I will remember.")])
    async with (
        ModelServer(lambda request: next(replies, Say("fine"))) as server,
        agent(tmp_path, server, auxiliary_model="stub/aux") as runtime,
    ):
        await ask(runtime, "I can't eat walnuts.")
        assert (tmp_path / "memory" / "USER.md").read_text() == "Allergic to walnuts.\n"
        await runtime.lifecycle.cross(KEY, New(), owner=ME)
        await ask(runtime, "Suggest a cake.")
        assert any(b"Allergic to walnuts." in body and b"Suggest a cake" in body for body in server.requests)


async def test_a_conversation_gets_a_title_from_the_auxiliary_model(tmp_path: Path) -> None:
    def script(request: Any) -> Say:
        return Say('"Cakes without walnuts."') if "Name the conversation" in str(request) else Say("Try lemon.")

    async with (
        ModelServer(script) as server,
        agent(tmp_path, server, auxiliary_model="stub/small") as runtime,
    ):
        await ask(runtime, "Suggest a cake.")
        ref = await runtime.lifecycle.current(KEY)
        assert ref is not None
        titles: list[str | None] = []

        async def look() -> None:
            session = await runtime.store.read(lambda uow: uow.sessions.get(ref.session_id))
            titles.append(session.title if session else None)

        for _ in range(200):
            await look()
            if titles[-1]:
                break
            await runtime.clock.sleep(0.02)
        assert titles[-1] == "Cakes without walnuts"
        await until(lambda: any(b'"model":"small"' in body for body in server.requests))


async def test_the_next_model_answers_while_a_provider_is_down(tmp_path: Path) -> None:
    async with (
        ModelServer(lambda request: Fail(500, "down")) as bad,
        ModelServer(lambda request: Say("I am here.")) as good,
    ):
        providers = {
            "bad": ProviderSettings(base_url=bad.base_url),
            "good": ProviderSettings("anthropic", good.base_url),
        }
        settings = Settings(tmp_path, model="bad/one", fallback_models=("good/two",), providers=providers)
        async with Runtime(settings) as runtime:
            await runtime.ready()
            assert await ask(runtime, "anybody there?") == "I am here."
            assert len(bad.requests) == 4


async def test_a_wrong_api_key_is_reported_in_one_line_and_the_conversation_continues(tmp_path: Path) -> None:
    async with ModelServer(lambda request: Say("hello"), key="right") as server, agent(tmp_path, server) as runtime:
        problem = await ask(runtime, "hi")
        assert "key" in problem
        assert "\n" not in problem
        ref = await runtime.lifecycle.current(KEY)
        assert ref is not None
        session = await runtime.store.read(lambda uow: uow.sessions.get(ref.session_id))
        assert session is not None
        (turn,) = (await runtime.store.read(lambda uow: uow.turns.view(session))).turns
        assert (turn.user_text, turn.status) == ("hi", TurnStatus.INTERRUPTED)


@pytest.mark.parametrize("text", ["x" * 9_000_000, "\x00\x01\x02 binary \udcff paste"], ids=["huge", "binary"])
async def test_a_huge_or_binary_paste_is_accepted(tmp_path: Path, text: str) -> None:
    async with ModelServer(lambda request: Say("That is a lot.")) as server, agent(tmp_path, server) as runtime:
        assert await ask(runtime, text) == "That is a lot."


class ToolProvider(MemoryProvider):
    """Memory provider with tools, some of which are invalid."""

    name = "toolmaker"

    async def get_tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        names = ("look_up", "memory", "look_up", "no name for a tool", "", "x" * 65, "delegate")
        return [{"name": name, "description": "Looks something up."} for name in names]

    async def handle_tool_call(self, name: str, args: Mapping[str, Any], **_: Any) -> str:
        return "found"


async def test_invalid_tools_of_a_provider_do_not_affect_anything_else(tmp_path: Path) -> None:
    async with ModelServer([Say(calls=(ToolCall("c1", "look_up", "{}"),)), Say("Done.")]) as server:
        settings = Settings(
            tmp_path, model="stub/one", providers={"stub": ProviderSettings("openai_compat", server.base_url)}
        )
        async with Runtime(settings, providers=[ToolProvider()]) as runtime:
            problems = await runtime.ready()
            assert await ask(runtime, "look it up") == "Done."
    assert [problem.split(": ")[0] for problem in problems] == ["memory provider toolmaker"] * 6
    assert "its tool 'memory' is left out: another tool has this name" in problems[0]
    assert "its tool 'no name for a tool' is left out: a name must be 1 to 64 letters" in problems[2]
    offered = [tool["function"]["name"] for tool in json.loads(server.requests[0])["tools"]]
    assert len(offered) == len(set(offered))
    assert "look_up" in offered
    assert json.loads(server.requests[1])["messages"][-1]["content"] == "found"
