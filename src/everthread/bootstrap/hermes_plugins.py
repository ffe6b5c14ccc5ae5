"""List the memory plugins in an environment of Hermes Agent, and test one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from everthread.adapters.memory.hermes_bridge.child_process import PluginFailed, PluginProcess
from everthread.adapters.memory.hermes_bridge.plugin_home import PluginHomes, expand_path
from everthread.adapters.memory.hermes_bridge.provider import HermesBridge
from everthread.bootstrap.memory_providers import make_provider
from everthread.config.provider_settings import HERMES
from everthread.config.schema import Settings
from everthread.domain.errors import EverthreadError, Unavailable
from everthread.domain.events import Delivery
from everthread.domain.model import ChatType, Message, Role, SessionKey, SessionRef

LIST_S_MAX = 120.0
STEP_S_MAX = 60.0
FIND_S_MAX = 15.0
_POLL_S = 0.5
_OWNER = "everthread-test"
_MESSAGE, _ANSWER = "I like my boat Skarven, which has a red keel.", "I will remember your boat Skarven."


async def list_plugins(settings: Settings) -> dict[str, Any]:
    """Return the version of Hermes Agent and its memory plugins with their state. Leaves no files."""
    plugin_settings = make_provider(f"{HERMES}:any", settings).settings
    with _scratch(plugin_settings) as (folder, _):
        child = await PluginProcess.start(
            HERMES, expand_path(str(plugin_settings["python"])), folder / "home", folder / "plugin.log"
        )
        try:
            answer = await child.request("list", {"home": str(folder / "home")}, LIST_S_MAX)
        except PluginFailed as error:
            raise Unavailable(HERMES, str(error)) from None
        finally:
            await child.aclose()
    return {"python": plugin_settings["python"], "hermes": answer.hermes, "plugins": [*answer.plugins]}


async def try_plugin(settings: Settings, name: str) -> list[dict[str, Any]]:
    """Test a plugin. Returns each step with its success and its result.

    The plugin's files go to a temporary folder. A plugin with a server sends the test data to that server.
    """
    plugin_settings = make_provider(name, settings).settings
    with _scratch(plugin_settings) as (folder, source):
        bridge = HermesBridge(name.partition(":")[2])
        trial = _Trial(bridge, f"everthread-test-{folder.name[-8:]}")
        try:
            own: dict[str, Any] = {"folder": folder, "home": "", "template": str(source), "owner": _OWNER}
            if await trial.step("starts", bridge.initialize(**{**plugin_settings, **own})):
                await trial.run()
        finally:
            await trial.step("ends", bridge.shutdown())
        return trial.steps


@contextmanager
def _scratch(plugin_settings: dict[str, Any]) -> Generator[tuple[Path, Path]]:
    """Create a temporary plugin home: the settings and plugins of the configured home, without its memories.

    Yields its folder, and the home that the settings come from.
    """
    configured, owner, template = (str(plugin_settings[name]) for name in ("folder", "owner", "template"))
    home = str(plugin_settings.get("home", ""))
    with tempfile.TemporaryDirectory(prefix="everthread-hermes-", ignore_cleanup_errors=True) as folder:
        source = PluginHomes(Path(configured), home, owner, for_each=False, template=template).prepare(owner)
        PluginHomes(Path(folder), "", _OWNER, for_each=False, template=str(source.settings)).prepare(_OWNER)
        yield Path(folder), source.settings


class _Trial:
    def __init__(self, bridge: HermesBridge, session_id: str) -> None:
        self._bridge = bridge
        self._at = SessionRef(session_id, 0, SessionKey("main", "cli", ChatType.DM, "test"), 1, _OWNER)
        self.steps: list[dict[str, Any]] = []

    async def run(self) -> None:
        bridge, ref = self._bridge, self._at
        messages = (Message(Role.USER, _MESSAGE), Message(Role.ASSISTANT, _ANSWER))
        tools = [str(schema.get("name", "")) for schema in bridge.get_tool_schemas()]
        self._record("brings tools", ", ".join(tools) or "none")
        await self.step(
            "is told of a session",
            bridge.on_session_switch(ref.session_id, reset=True, ref=ref, delivery=self._delivery(1)),
        )
        await self.step(
            "is told a turn",
            bridge.sync_turn(_MESSAGE, _ANSWER, ref=ref, delivery=self._delivery(2), messages=messages, turn=1),
        )
        await self.step(
            "is told a note",
            bridge.on_memory_write(
                "add", "user", "Has a boat called Skarven.", {}, ref=ref, delivery=self._delivery(3)
            ),
        )
        await self.step("is told of the end", bridge.on_session_end(messages, ref=ref, delivery=self._delivery(4)))
        await self.step("says something for the prompt", bridge.system_prompt_block(ref=ref))
        await self.step("recalls", self._recall())

    async def step(self, name: str, work: Awaitable[Any]) -> bool:
        try:
            async with asyncio.timeout(STEP_S_MAX):
                result = await work
        except (TimeoutError, EverthreadError, PluginFailed) as error:
            timed_out = isinstance(error, TimeoutError)
            self._record(name, f"no answer within {STEP_S_MAX:g} s" if timed_out else str(error), ok=False)
            return False
        self._record(name, str(result or ""))
        return True

    async def _recall(self) -> str:
        """Return the recalled text, or a remark. Retries for `FIND_S_MAX`: plugins may need time to store it."""
        deadline = asyncio.get_running_loop().time() + FIND_S_MAX
        while True:
            items = await self._bridge.prefetch("boat Skarven", ref=self._at, limit=5)
            found = [item.text for item in items if "Skarven" in item.text]
            if found:
                return found[0]
            if asyncio.get_running_loop().time() > deadline:
                return "nothing of it yet; some plugins need longer, or keep only what their tools are given"
            await asyncio.sleep(_POLL_S)

    def _record(self, name: str, result: str, *, ok: bool = True) -> None:
        self.steps.append({"step": name, "ok": ok, "said": result})

    def _delivery(self, seq: int) -> Delivery:
        return Delivery(f"{self._at.session_id}:{seq}:{self._bridge.name}:0", seq)
