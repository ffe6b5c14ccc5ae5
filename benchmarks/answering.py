"""The agent with everything it has, against a model that answers at once."""

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
from benchmarks.measuring import Calls, Figure, cpu_ms
from everthread.agent.model_call import ModelChoice
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.tools.runner import Toolbox
from everthread.agent.turn_options import TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Compression, Provider, Settings
from everthread.domain.model import ChatType, Inbound, Message, Role, SessionKey, SessionRef
from everthread.ports.model import ToolSchema
from everthread.ports.tools import Tool, ToolUse

TOOLS = 31
OWN_TOOLS = 3
"""Those that the agent brings itself."""
SAID_WORDS = 12
BATCH = 20
BATCHES = 9
RUNS = 9
PREPARED = 40
TURNS = 500
EARLIER = 40


def tools(count: int) -> tuple[Tool, ...]:
    """Tools with schemas of an ordinary size."""

    async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "ok"

    properties = {
        "path": {"type": "string", "description": "The file or folder to work on, relative to the workspace."},
        "limit": {"type": "integer", "description": "How many results at most.", "minimum": 1, "maximum": 100},
        "recursive": {"type": "boolean", "description": "Whether folders below are looked at as well."},
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    described = "Looks at files and says what is there; use it before you change anything, and read the result closely."
    return tuple(Tool(ToolSchema(f"tool_{number:02}", described, schema), run) for number in range(count))


@asynccontextmanager
async def model_server(*options: str) -> AsyncIterator[str]:
    """The base URL of a stub in another process."""
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
class Office:
    """A runtime with conversations in it, each with a person of its own."""

    runtime: Runtime
    url: str

    @property
    def choice(self) -> ModelChoice:
        return self.runtime.choices()[0]

    async def sessions(self, count: int, messages: int, texts: itertools.cycle[str]) -> list[SessionKey]:
        keys = [SessionKey("main", "bench", ChatType.DM, f"{messages}-{number}") for number in range(count)]
        await asyncio.gather(*(self._fill(key, messages // 2, texts) for key in keys))
        return keys

    async def earlier(self, keys: list[SessionKey], messages: int, texts: itertools.cycle[str]) -> None:
        """Each of them has had another conversation before, which there is something to recall from."""
        before = [replace(key, chat=f"{key.chat}-before") for key in keys]
        await asyncio.gather(
            *(self._fill(old, messages // 2, texts, owner=key.chat) for old, key in zip(before, keys, strict=True))
        )

    async def reviewed(self) -> None:
        """Whatever filling has made due in the background is done: a turn is charged with its own share of it only."""
        self.runtime.agent.attend_to_reviews()
        # Nobody is told when the last of them is done.
        while await self.runtime.store.read_inline(lambda uow: uow.reviews.is_due(self.runtime.clock.now())):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _fill(self, key: SessionKey, turns: int, texts: itertools.cycle[str], *, owner: str = "") -> None:
        lifecycle = self.runtime.lifecycle
        for _ in range(turns):
            said, answered = next(texts), next(texts)
            await lifecycle.accept(Inbound(key, owner or key.chat, said))
            ticket = await lifecycle.begin_turn(key)
            assert ticket is not None
            messages = (Message(Role.USER, said), Message(Role.ASSISTANT, answered))
            await lifecycle.commit_turn(ticket, messages, None)

    async def turn(self, key: SessionKey, text: str) -> None:
        """What a front end does for one message."""
        await self.runtime.lifecycle.accept(Inbound(key, key.chat, text))
        ended = await self.runtime.agent.answer(key, TurnOptions(self.runtime.choices()))
        assert ended is not None
        assert not ended.problem, ended.problem


@asynccontextmanager
async def office(folder: Path) -> AsyncIterator[Office]:
    async with model_server() as url:
        # What a thousand messages cost can only be seen where they stay a thousand; half of them would be summarised.
        whole = Compression(enabled=False)
        settings = Settings(folder, model="stub/one", providers={"stub": Provider(base_url=url)}, compression=whole)
        async with Runtime(settings, tools=tools(TOOLS - OWN_TOOLS)) as runtime:
            problems = await runtime.ready()
            assert not problems, problems
            yield Office(runtime, url)


def texts() -> itertools.cycle[str]:
    return itertools.cycle([text[:200] for text in corpus.messages(500)])


async def turns(folder: Path) -> dict[str, Figure]:
    """A whole turn: accepted, recalled, asked, streamed, committed. And the bare request with the same bytes."""
    words = texts()
    figures: dict[str, Figure] = {}
    async with office(folder) as place:
        for name, messages in (("turn_cpu_ms", 100), ("turn_cpu_ms_1000", 1000)):
            keys = await place.sessions(BATCH, messages, words)
            await place.reviewed()
            figures[name] = await cpu_ms(_turns(place, keys, words))
            await place.earlier(keys, EARLIER, words)
            await place.reviewed()
            figures[name.replace("turn_", "recalling_turn_")] = await cpu_ms(_turns(place, keys, words))
            bare = "bare_http_cpu_ms" if messages == 100 else f"bare_http_cpu_ms_{messages}"
            figures[bare] = await _bare(place, keys[0])
    return figures


async def _turns(place: Office, keys: list[SessionKey], words: itertools.cycle[str]) -> AsyncIterator[Calls]:
    for _ in range(BATCHES):
        yield [partial(place.turn, key, " ".join(next(words).split()[:SAID_WORDS])) for key in keys]


async def _bare(place: Office, key: SessionKey) -> Figure:
    import aiohttp

    ref = await _ref(place, key)
    runtime = place.runtime
    toolbox = Toolbox(tools(TOOLS))
    prepared = await _preparer(runtime).prepare(ref, place.choice, toolbox)
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


async def _ref(place: Office, key: SessionKey) -> SessionRef:
    ref = await place.runtime.lifecycle.current(key)
    assert ref is not None
    return ref


def _preparer(runtime: Runtime) -> Preparer:
    prompts = PromptBuilder(runtime.settings.home, runtime.memory, runtime.clock)
    return Preparer(runtime.store, runtime.lifecycle, prompts, runtime.clock, output_tokens_max=8192)


async def prepared(folder: Path) -> dict[str, Figure]:
    """An agent made ready from what is stored, nothing of it in the cache; and what keeping it takes."""
    words = texts()
    async with office(folder) as place:
        keys = await place.sessions(PREPARED, 100, words)
        refs = [await _ref(place, key) for key in keys]
        toolbox = Toolbox(tools(TOOLS))
        # The first time stores the prefix.
        preparer = _preparer(place.runtime)
        for ref in refs:
            await preparer.prepare(ref, place.choice, toolbox)

        async def batches() -> AsyncIterator[Calls]:
            for _ in range(RUNS):
                fresh = _preparer(place.runtime)
                yield [partial(fresh.prepare, ref, place.choice, toolbox) for ref in refs]

        figure = await cpu_ms(batches())
        gc.collect()
        tracemalloc.start()
        kept = _preparer(place.runtime)
        await kept.prepare(refs[0], place.choice, toolbox)
        before = tracemalloc.get_traced_memory()[0]
        for ref in refs[1:]:
            await kept.prepare(ref, place.choice, toolbox)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return {"prepare_cpu_ms": figure, "prepare_kb": Figure.exact(grown / 1024 / (len(refs) - 1))}


async def growth(folder: Path) -> dict[str, Figure]:
    """What a process has grown by after many turns of one conversation."""
    words = texts()
    async with office(folder) as place:
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
    """`everthread -p`, the whole process from its start to its end. Nothing if the command is not installed."""
    command = Path(sys.executable).parent / "everthread"
    if not command.exists():
        return {}
    async with model_server() as url:
        (folder / "config.toml").write_text(f'model = "stub/one"\n[providers.stub]\nbase_url = "{url}"\n')
        words = [str(command), "--home", str(folder), "-p", "Good morning!"]
        samples = [await asyncio.to_thread(child_cpu_ms, words) for _ in range(RUNS)]
    return {"first_answer_cpu_ms": Figure.of(samples[1:])}
