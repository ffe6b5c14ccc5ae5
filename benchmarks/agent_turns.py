"""Measure the whole agent against a model stub that answers immediately."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from benchmarks import corpus
from benchmarks.command import child_cpu_ms
from benchmarks.measurement import Calls, Figure, cpu_ms
from everthread.agent.model_call import ModelChoice
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.tools.runner import Toolbox
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import CompressionSettings, ProviderSettings, Settings
from everthread.domain.model import ChatType, Inbound, Message, Role, SessionKey, SessionRef
from everthread.domain.rights import OWNER_RIGHTS
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

TOOLS = 31
OWN_TOOLS = 3
"""Built-in tools of the agent, part of `TOOLS`."""
QUESTION_WORDS = 12
BATCH = 20
BATCHES = 9
RUNS = 9
PREPARED = 40
TURNS = 500
EARLIER_MESSAGES = 40


def tools(count: int) -> tuple[Tool, ...]:
    """Make tools with schemas of typical size."""

    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "ok"

    properties = {
        "path": {"type": "string", "description": "The file or folder to work on, relative to the workspace."},
        "limit": {"type": "integer", "description": "Maximum number of results.", "minimum": 1, "maximum": 100},
        "recursive": {"type": "boolean", "description": "Include subfolders."},
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    described = (
        "List the files of a folder with their sizes; use it before changing anything, and read the result closely."
    )
    return tuple(Tool(ToolSchema(f"tool_{number:02}", described, schema), run) for number in range(count))


@asynccontextmanager
async def model_server(*options: str) -> AsyncIterator[str]:
    """Run a model stub in another process; yield its base URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "everthread.testing.model_server.server", "--port", "0", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        await process.wait()


@dataclass
class BenchmarkAgent:
    """A runtime with conversations, each with its own owner."""

    runtime: Runtime
    url: str

    @property
    def choice(self) -> ModelChoice:
        return self.runtime.choices()[0]

    async def sessions(self, count: int, messages: int, texts: itertools.cycle[str]) -> list[SessionKey]:
        keys = [SessionKey("main", "bench", ChatType.DM, f"{messages}-{number}") for number in range(count)]
        await asyncio.gather(*(self._fill(key, messages // 2, texts) for key in keys))
        return keys

    async def add_earlier_sessions(self, keys: list[SessionKey], messages: int, texts: itertools.cycle[str]) -> None:
        """Give each owner an earlier session to recall from."""
        before = [replace(key, chat=f"{key.chat}-before") for key in keys]
        await asyncio.gather(
            *(self._fill(old, messages // 2, texts, owner=key.chat) for old, key in zip(before, keys, strict=True))
        )

    async def finish_reviews(self) -> None:
        """Wait for the reviews that filling made due, so that a measured turn pays only for its own."""
        self.runtime.agent.start_reviews()
        # No event announces the last review.
        while await self.runtime.store.read_inline(lambda uow: uow.reviews.is_due(self.runtime.clock.now())):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _fill(self, key: SessionKey, turns: int, texts: itertools.cycle[str], *, owner: str = "") -> None:
        lifecycle = self.runtime.lifecycle
        for _ in range(turns):
            question, answered = next(texts), next(texts)
            await lifecycle.accept(Inbound(key, owner or key.chat, question))
            claim = await lifecycle.begin_turn(key)
            assert claim is not None
            messages = (Message(Role.USER, question), Message(Role.ASSISTANT, answered))
            await lifecycle.commit_turn(claim, messages, None)

    async def turn(self, key: SessionKey, text: str) -> None:
        """Do what a front end does for one message."""
        await self.runtime.lifecycle.accept(Inbound(key, key.chat, text))
        ended = await self.runtime.agent.answer(key, TurnOptions(self.runtime.choices()))
        assert ended is not None
        assert not ended.problem, ended.problem


@asynccontextmanager
async def benchmark_agent(folder: Path) -> AsyncIterator[BenchmarkAgent]:
    async with model_server() as url:
        # Compression would summarise half of the thousand messages that are to be measured.
        whole = CompressionSettings(enabled=False)
        settings = Settings(
            folder, model="stub/one", providers={"stub": ProviderSettings(base_url=url)}, compression=whole
        )
        async with Runtime(settings, tools=tools(TOOLS - OWN_TOOLS)) as runtime:
            problems = await runtime.ready()
            assert not problems, problems
            yield BenchmarkAgent(runtime, url)


def texts() -> itertools.cycle[str]:
    return itertools.cycle([text[:200] for text in corpus.messages(500)])


async def turns(folder: Path) -> dict[str, Figure]:
    """Measure a whole turn (accept, recall, model call, streaming, commit) and the bare request with the same bytes."""
    words = texts()
    figures: dict[str, Figure] = {}
    async with benchmark_agent(folder) as place:
        for name, messages in (("turn_cpu_ms", 100), ("turn_cpu_ms_1000", 1000)):
            keys = await place.sessions(BATCH, messages, words)
            await place.finish_reviews()
            figures[name] = await cpu_ms(_turn_calls(place, keys, words))
            await place.add_earlier_sessions(keys, EARLIER_MESSAGES, words)
            await place.finish_reviews()
            figures[name.replace("turn_", "recalling_turn_")] = await cpu_ms(_turn_calls(place, keys, words))
            bare = "bare_http_cpu_ms" if messages == 100 else f"bare_http_cpu_ms_{messages}"
            figures[bare] = await _bare_request(place, keys[0])
    return figures


async def _turn_calls(
    place: BenchmarkAgent, keys: list[SessionKey], words: itertools.cycle[str]
) -> AsyncIterator[Calls]:
    for _ in range(BATCHES):
        yield [partial(place.turn, key, " ".join(next(words).split()[:QUESTION_WORDS])) for key in keys]


async def _bare_request(place: BenchmarkAgent, key: SessionKey) -> Figure:
    import aiohttp

    ref = await _ref(place, key)
    runtime = place.runtime
    session_tools = SessionTools(Toolbox(tools(TOOLS)), OWNER_RIGHTS)
    prepared = await _preparer(runtime).prepare(ref, place.choice, session_tools)
    tail = place.choice.client.encode([Message(Role.USER, "What was the name of that place again?")])
    body = prepared.head + prepared.history + b"," + tail + b"]}"
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session:

        async def ask() -> None:
            async with session.post(f"{place.url}/chat/completions", data=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                async for _ in response.content.iter_any():
                    pass

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(BATCHES):
                yield [ask] * BATCH

        return await cpu_ms(batches())


async def _ref(place: BenchmarkAgent, key: SessionKey) -> SessionRef:
    ref = await place.runtime.lifecycle.current(key)
    assert ref is not None
    return ref


def _preparer(runtime: Runtime) -> Preparer:
    prompts = PromptBuilder(runtime.settings.home, runtime.memory, runtime.clock)
    return Preparer(runtime.store, runtime.lifecycle, prompts, runtime.clock, output_tokens_max=8192)


async def prepared(folder: Path) -> dict[str, Figure]:
    """Measure preparing a session from the store with an empty cache, and the memory that a cached session takes."""
    words = texts()
    async with benchmark_agent(folder) as place:
        keys = await place.sessions(PREPARED, 100, words)
        refs = [await _ref(place, key) for key in keys]
        session_tools = SessionTools(Toolbox(tools(TOOLS)), OWNER_RIGHTS)
        # The first time stores the prefix.
        preparer = _preparer(place.runtime)
        for ref in refs:
            await preparer.prepare(ref, place.choice, session_tools)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(RUNS):
                fresh = _preparer(place.runtime)
                yield [partial(fresh.prepare, ref, place.choice, session_tools) for ref in refs]

        figure = await cpu_ms(batches())
        gc.collect()
        tracemalloc.start()
        kept = _preparer(place.runtime)
        await kept.prepare(refs[0], place.choice, session_tools)
        before = tracemalloc.get_traced_memory()[0]
        for ref in refs[1:]:
            await kept.prepare(ref, place.choice, session_tools)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return {"prepare_cpu_ms": figure, "prepare_kb": Figure.exact(grown / 1024 / (len(refs) - 1))}


async def growth(folder: Path) -> dict[str, Figure]:
    """Measure memory growth over many turns of one conversation."""
    words = texts()
    async with benchmark_agent(folder) as place:
        (key,) = await place.sessions(1, 20, words)
        for _ in range(20):
            await place.turn(key, next(words))
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(TURNS):
            await place.turn(key, next(words))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return {"growth_kb_per_turn": Figure.exact(grown / 1024 / TURNS)}


async def first_answer(folder: Path) -> dict[str, Figure]:
    """Measure `everthread -p` as a whole process. Return nothing if the command is not installed."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    async with model_server() as url:
        (folder / "config.toml").write_text(f'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n')
        words = [str(command), "--home", str(folder), "-p", "Good morning!"]
        samples = [await asyncio.to_thread(child_cpu_ms, words) for _ in range(RUNS)]
    return {"first_answer_cpu_ms": Figure.of(samples[1:])}
