"""Scenarios of long conversations, with real stores and real servers, in which nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, AsyncDiary, Call, until

from everthread.adapters.memory.builtin import BuiltinMemory
from everthread.adapters.sqlite.store import SqliteStore
from everthread.agent.compression.summarizer import INSTRUCTION
from everthread.agent.events import Compressed, TurnEvent
from everthread.agent.tools.memory import session_search
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, ReviewSettings, Settings
from everthread.domain.model import ChatType, Inbound, SessionKey
from everthread.lifecycle.session_lookup import find_session
from everthread.plugins import hookimpl
from everthread.ports.context import Middle, Reader, Rollover
from everthread.ports.model import Request, Usage
from everthread.ports.tools import ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer, Script

KEY = SessionKey("main", "cli", ChatType.DM, "1")
SUMMARY = "## Goal\n- sail around the world\n\n## Facts\n- the boat is called Bruno"
AUX_TOKENS = 20_000
TALK = [f"message {number}: " + "of boats and masts and sails " * 10 for number in range(1, 9)]


def is_summarising(request: Any) -> bool:
    return "Bring the summary of a conversation up to date" in str(request)


def script(used: Mapping[str, int]) -> Script:
    """Script that answers with the usage given for the newest message."""

    def reply(request: Any) -> Say:
        said = str(request.messages[-1])
        if is_summarising(request):
            return Say(SUMMARY, delay_s=0.05)
        if "Name the conversation" in str(request):
            return Say("A voyage")
        tokens = next((tokens for text, tokens in used.items() if text in said), 1_000)
        return Say("Aye.", usage=Usage(tokens, 5))

    return reply


class Diary(AsyncDiary):
    async def on_pre_compress(self, messages: Any, *, ref: Any) -> str:
        return "Keep in mind that Ann gets seasick."


@asynccontextmanager
async def sailing(
    home: Path, server: ModelServer, kind: Any, *providers: object, **more: Any
) -> AsyncIterator[Runtime]:
    settings = Settings(
        home,
        model="stub/one",
        auxiliary_model="aux/reader",
        providers={
            "stub": ProviderSettings(kind, server.base_url),
            "aux": ProviderSettings(kind, server.base_url, context_tokens=AUX_TOKENS),
        },
        compression=CompressionSettings(tail_tokens=300),
        review=ReviewSettings(every_turns=0),
    )
    async with Runtime(settings, providers=providers, **more) as runtime:
        assert await runtime.ready() == ()
        yield runtime


class Talk:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.heard: list[TurnEvent] = []

    async def say(self, *texts: str) -> None:
        for text in texts:
            await self.runtime.lifecycle.accept(Inbound(KEY, ME, text))
            ended = await self.runtime.agent.answer(KEY, TurnOptions(self.runtime.choices(), self.heard.append))
            assert ended is not None
            assert ended.text == "Aye.", ended.problem

    @property
    def rollovers(self) -> list[Compressed]:
        return [event for event in self.heard if isinstance(event, Compressed)]


def parsed(bodies: list[bytes]) -> list[dict[str, Any]]:
    return [body for body in map(json.loads, bodies) if "Name the conversation" not in json.dumps(body)]


@pytest.mark.parametrize("kind", ["openai_compat", "anthropic"])
async def test_s24_compression_notifies_memory_sends_one_message_and_keeps_the_cache(tmp_path: Path, kind: str) -> None:
    diary = Diary()
    below, at = AUX_TOKENS - 6, AUX_TOKENS - 5
    stuck = asyncio.Event()

    async def hang(call: Call) -> None:
        if call.hook == "sync_turn" and call.text == "at the threshold":
            await stuck.wait()

    diary.before = hang
    async with ModelServer(script({"below it": below, "at the threshold": at})) as server:
        async with sailing(tmp_path, server, kind, diary) as runtime:
            talk = Talk(runtime)
            await talk.say(*TALK, "below it")
            await asyncio.sleep(0.1)
            assert talk.rollovers == [], "compressed below the context size of the auxiliary model"
            before = await runtime.lifecycle.current(KEY)
            assert before is not None
            await talk.say("at the threshold")
            await until(lambda: talk.rollovers, "nothing was compressed while a provider hung: a flush was waited for")
            after = await runtime.lifecycle.current(KEY)
            assert after is not None
            await talk.say("and on", "and on and on")
            stuck.set()
            await until(lambda: diary.book.of("on_session_switch", after.session_id), "memory was not told")
        bodies = [body for body in server.requests if b"Name the conversation" not in body]
    told = diary.book.of("on_session_switch", after.session_id)[0].more
    assert (told["parent_session_id"], told["reset"]) == (before.session_id, False)
    [asked] = [body for body in parsed(bodies) if is_summarising(body)]
    assert asked["model"] == "reader"
    [message] = asked["messages"]
    assert message["role"] == "user"
    text = message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
    assert INSTRUCTION in text
    assert "Keep in mind that Ann gets seasick." in text
    assert "system" not in asked
    assert "tools" not in asked
    turns = [body for body in bodies if not is_summarising(body.decode())]
    assert len(turns) == len(TALK) + 4, "unexpected requests were sent"
    old, new = turns[:-2], turns[-2:]
    for bodies_of_one in (old, new):
        starts = {body[: body.index(b'"messages":[') + (0 if kind == "anthropic" else 200)] for body in bodies_of_one}
        assert len(starts) == 1, "the prefix changed within a session"
    assert all(b"sail around the world" not in body for body in old)
    assert all(b"sail around the world" in body for body in new)


class Engine:
    """Context engine as a plugin provides it."""

    def __init__(self) -> None:
        self.rollovers: list[Rollover] = []

    @hookimpl
    def context_engine(self) -> Engine:
        return self

    def reader(self, model: str) -> Reader:
        return Reader("engine", 1_000_000)

    async def summarise(self, middle: Middle) -> str:
        return f"{len(middle.turns)} turns with {middle.model}"

    async def on_rollover(self, rollover: Rollover) -> None:
        self.rollovers.append(rollover)


async def test_s24_a_context_engine_of_a_plugin_replaces_the_default_and_is_notified(tmp_path: Path) -> None:
    engine = Engine()
    async with (
        ModelServer(script({"the last straw": 64_000})) as server,
        sailing(tmp_path, server, "openai_compat", plugins=(engine,)) as runtime,
    ):
        talk = Talk(runtime)
        await talk.say(*TALK, "the last straw")
        await until(lambda: engine.rollovers)
        here = await runtime.lifecycle.current(KEY)
        assert engine.rollovers[0].entered == here
        assert engine.rollovers[0].summary.endswith("turns with stub/one")
        assert not any(is_summarising(body.decode()) for body in server.requests)


# --- Two thousand turns ----------------------------------------------------------------------------------------------

TURNS = 2_000
EACH = 100
WORDS = "boat mast sail rope tide gale reef quay crew deck".split()
NEEDLES = {
    3: "the anchor weighs 412 stones",
    57: "Marigold hid the key under the blue barrel",
    140: "Ann sails on Fridays",
}


class RecallFixture(AgentFixture):
    """Agent with built-in memory, which recalls turns of all conversations."""

    async def __aenter__(self) -> Self:
        self._remembers = await SqliteStore.open(self.path)
        self._providers = (BuiltinMemory(self._remembers, self.clock),)
        return await super().__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        await super().__aexit__(*raised)
        await self._remembers.aclose()


@pytest.mark.timeout(120)
async def test_two_thousand_turns_and_twenty_compressions_lose_nothing(tmp_path: Path) -> None:
    def answer(request: Request) -> str:
        return f"re {request.tail[0].content[:9]}"

    model, reader = FakeModel([answer], usage=Usage(1_000, 10)), FakeModel([SUMMARY])
    model.requests = _Last()
    async with RecallFixture(
        tmp_path, model, compression=CompressionSettings(tail_tokens=300), summariser=reader
    ) as core:
        lineage: list[str] = []
        for number in range(1, TURNS + 1):
            model.usage = Usage(70_000, 10) if number % EACH == 0 else Usage(1_000, 10)
            # Words that few other turns contain, because this test does not measure recall.
            needle = NEEDLES.get(number, " ".join(f"{word}{number * step % 997}" for step, word in enumerate(WORDS, 2)))
            await core.ask(f"say{number:04} {needle}")
            if number == 1:
                await core.lifecycle.rename((await core.at(CLI)).session_id, "voyage", owner=ME)
            if number % EACH == 0:
                lineage.append((await core.at(CLI)).session_id)
                await until(lambda: not core.compressor.busy)
        model.usage = Usage(1_000, 10)
        tip = (await core.at(CLI)).session_id
        assert len(reader.requests) == TURNS // EACH
        assert len({*lineage, tip}) == TURNS // EACH + 1
        await _finds_every_message(core)
        for needle in NEEDLES.values():
            recall = await core.memory.recall(f"What do you know: {needle[:-3]}?", ref=await core.at(CLI))
            assert any(needle in item.text for item in recall.items), needle
            await core.ask(f"Tell me again, {needle[:-3]}?")
            assert needle in model.requests[-1].recall
        titles = ["voyage", *(f"voyage #{number}" for number in range(2, TURNS // EACH + 2))]
        for session_id, title in zip([*lineage, tip], titles, strict=True):
            assert (await core.session(session_id)).title == title
            for name in (session_id, title):
                found = await core.store.read(
                    lambda uow, name=name: uow.sessions.tip(find_session(uow, name, owner=ME).id)
                )
                assert found is not None
                assert found.id == tip, f"{name} resolves to another session"


async def _finds_every_message(core: AgentFixture) -> None:
    search = session_search(core.store)
    use = ToolUse(await core.at(CLI), "t", "c")
    for number in range(1, TURNS + 1):
        assert f"say{number:04}" in await search.run({"query": f"say{number:04}", "limit": 1}, use)


class _Last(list[Request]):
    """List that keeps only the newest request, because two thousand would use most of the memory."""

    def append(self, request: Request) -> None:
        self[:] = [request]
