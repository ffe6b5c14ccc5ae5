"""Run the `everthread` command with a scripted model: python chat_worker.py SCRIPT.json ARGUMENT..."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.agent_runtime import tool
from tests.fake_model import FakeModel

from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn import Agent
from everthread.bootstrap.runtime import Runtime
from everthread.cli import main as cli
from everthread.config.schema import Settings
from everthread.domain import errors
from everthread.domain.model import SessionRef, ToolCall
from everthread.domain.rights import OWNER_RIGHTS
from everthread.ports.memory import Capability, MemoryProvider, RecallItem
from everthread.ports.model import Request


def echo(request: Request) -> str:
    """Echo the new user messages and count the messages before them."""
    before = json.loads(b"[" + request.history + b"]")
    asked = [message.content for message in request.tail if message.role.value == "user"]
    return f"echo {' + '.join(text[:40] for text in asked)} ({len(before)} before, {len(asked[0])} characters)"


def line(given: Any) -> object:
    match given:
        case "echo":
            return echo
        case {"error": name, "text": text}:
            return getattr(errors, name)(text)
        case {"tool": name, **more}:
            return ToolCall("call", name, json.dumps(more.get("arguments", {})))
        case _:
            return given


class Hasty:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    elapsed = now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class Remembers(MemoryProvider):
    def __init__(self) -> None:
        super().__init__()
        self.name = "shoebox"
        self.capabilities = Capability.RECALL

    async def prefetch(self, query: str, **_: Any) -> list[RecallItem]:
        return [RecallItem("likes green tea", session_id="01OLD")]


class Diary(MemoryProvider):
    """Memory provider that appends each call to a file, one line per call."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = "diary"
        self._path = Path(path)

    def _write(self, **told: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(told) + "\n")

    async def on_session_switch(self, new_session_id: str, *, parent_session_id: str = "", **more: Any) -> None:
        told = {name: more[name] for name in ("reset", "reason")}
        self._write(what="switch", session=new_session_id, parent=parent_session_id, **told)

    async def sync_turn(self, user: str, assistant: str, *, ref: Any, **_: Any) -> None:
        self._write(what="turn", session=ref.session_id, user=user)

    async def on_session_end(self, messages: Any, *, ref: Any, **_: Any) -> None:
        self._write(what="end", session=ref.session_id, messages=len(messages))


class Notices(MemoryProvider):
    """Memory provider that appends the hook calls made during a turn to a file, one line per call."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.name = "notices"
        self._path = Path(path)

    def on_turn_start(self, user: str, *, ref: SessionRef) -> None:
        self._write("on_turn_start", user, ref)

    def queue_prefetch(self, query: str, *, ref: SessionRef) -> None:
        self._write("queue_prefetch", query, ref)

    def _write(self, hook: str, text: str, ref: SessionRef) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([hook, text, ref.session_id, ref.owner]) + "\n")


class ScriptedRuntime(Runtime):
    def __init__(self, settings: Settings, script: dict[str, Any]) -> None:
        providers: list[MemoryProvider] = [Remembers()] if script.get("remembers") else []
        providers += map(Notices, script.get("notices", ()))
        super().__init__(settings, providers=[*providers, *map(Diary, script.get("diaries", ()))])
        self._script = script
        self._model = FakeModel([line(given) for given in script.get("lines", ["echo"])])
        self._model.pause_s = script.get("pause_s", 0.0)

    async def ready(self) -> tuple[str, ...]:
        await self.start()
        await asyncio.sleep(self._script.get("ready_s", 0.0))
        self._slow_down_reads(self._script.get("slow_reads", {}))

        async def look(arguments: Any, use: Any) -> str:
            await asyncio.sleep(self._script.get("tool_s", 0.0))
            return "a sunny day"

        async def wipe(arguments: Any, use: Any) -> str:
            (self.settings.home / "wiped").touch()
            return "wiped"

        home = self.settings.home
        toolbox = Toolbox([tool("look", look), tool("wipe", wipe, dangerous=True)])

        async def tools(ref: SessionRef) -> SessionTools:
            return SessionTools(toolbox, OWNER_RIGHTS)

        self.agent = Agent(
            self.lifecycle,
            self.memory,
            Preparer(
                self.store,
                self.lifecycle,
                PromptBuilder(home, self.memory, self.clock),
                self.clock,
                output_tokens_max=1000,
            ),
            ModelCaller(self.lifecycle, Hasty(), lambda: 0.5, self.hooks),
            ToolRunner(self.lifecycle, self.hooks),
            tools,
            self.clock,
        )
        return tuple(self._script.get("problems", ()))

    def _slow_down_reads(self, slow: dict[str, float]) -> None:
        """Delay the reads of these functions, as a busy machine may."""
        read = self.store.read

        async def slow_read(work: Any) -> Any:
            await asyncio.sleep(slow.get(work.__qualname__.partition(".")[0], 0.0))
            return await read(work)

        if slow:
            self.store.read = slow_read

    def choices(self, model: str = "") -> Sequence[ModelChoice]:
        if self._script.get("no_model"):
            raise errors.BadConfig("no model is chosen; put one into config.toml")
        if model.startswith("nowhere/"):
            raise errors.BadConfig(f"there is no provider 'nowhere'; {model} can't be asked")
        return [self._model.choice(model or "fake/one")]


def main() -> int:
    if os.isatty(0):
        # Make the terminal the controlling terminal of this process, so that Ctrl-C sends it a signal.
        with suppress(PermissionError):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    script = json.loads(Path(sys.argv[1]).read_text())
    return cli.run(lambda settings: ScriptedRuntime(settings, script), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
