"""A plugin in one simulated process: it records its calls, and raises or hangs on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from types import SimpleNamespace
from typing import cast

import pluggy

from everthread.domain.model import Lease, Session, SessionKey, Turn
from everthread.plugins import HookRunner, hookimpl, implemented_hooks, load_plugins
from everthread.store.leases import QueuedHook
from everthread.store.sessions import BoundaryRow
from tests.simulator.coverage import HOOK_FAILURE
from tests.simulator.environment import Faults, SimProcess

QUEUED_HOOKS = frozenset({"on_session_start", "on_session_finalize", "on_session_reset", "on_boundary", "on_turn_end"})
KEY: ContextVar[SessionKey] = ContextVar("key")
Called = Callable[[SessionKey, str, str], None]


class SimPlugin:
    """All hooks of the specification. Queued hooks are recorded before they fail."""

    def __init__(self, process: SimProcess, faults: Faults, called: Called) -> None:
        self._process = process
        self._faults = faults
        self._called = called

    @hookimpl
    async def on_session_start(self, session: Session) -> None:
        await self._run("on_session_start", session.id)

    @hookimpl
    async def on_session_finalize(self, session_id: str) -> None:
        await self._run("on_session_finalize", session_id)

    @hookimpl
    async def on_session_reset(self, session_id: str) -> None:
        await self._run("on_session_reset", session_id)

    @hookimpl
    async def on_boundary(self, boundary: BoundaryRow) -> None:
        await self._run("on_boundary", name_of(boundary), boundary.kind)

    @hookimpl
    async def on_turn_end(self, turn: Turn) -> None:
        await self._run("on_turn_end", f"{turn.session_id}:{turn.number}")

    @hookimpl
    async def pre_model_call(self) -> None:
        await self._fail()

    @hookimpl
    async def post_model_call(self) -> None:
        await self._fail()

    @hookimpl
    async def pre_tool_call(self) -> None:
        await self._fail()

    @hookimpl
    async def post_tool_call(self) -> None:
        await self._fail()

    async def _run(self, hook: str, about: str, boundary: str = "") -> None:
        self._process.check()
        self._called(KEY.get(), hook, about)
        if boundary and self._faults.hooks:
            self._faults.coverage.hit(boundary, HOOK_FAILURE)
        await self._fail()

    async def _fail(self) -> None:
        fault = self._faults.hooks.pop() if self._faults.hooks else ""
        if fault:
            self._faults.hit[f"hook {fault}"] += 1
        await self._process.pause()
        match fault:
            case "raises":
                raise ValueError("simulated bug of a plugin")
            case "exits":
                raise SystemExit(1)
            case "slow":
                await asyncio.sleep(2.0)
            case "hangs":
                await asyncio.get_running_loop().create_future()
            case _:
                pass


def loaded(plugin: SimPlugin | None) -> pluggy.PluginManager:
    """Load the plugin as `load_plugins` does. Pluggy inspects its class only once: that takes as long as 30 statements
    of a transaction, and every simulated process has a plugin.
    """
    if plugin is None:
        return load_plugins()
    hooks = {name: _OneImplementation(plugin, name, argnames) for name, argnames in _argument_names()}
    return cast(pluggy.PluginManager, SimpleNamespace(hook=SimpleNamespace(**hooks)))


class _OneImplementation:
    """The implementation of one hook, as `HookRunner` asks a `PluginManager` for it."""

    def __init__(self, plugin: SimPlugin, name: str, argnames: tuple[str, ...]) -> None:
        self.plugin_name = "simulated"
        self.function = getattr(plugin, name)
        self.argnames = argnames

    def get_hookimpls(self) -> list[_OneImplementation]:
        return [self]


@cache
def _argument_names() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The hooks that the plugin implements, and the arguments that each declares."""
    # Only the methods are looked at.
    plugin = SimPlugin.__new__(SimPlugin)
    manager = load_plugins((plugin,))
    callers = {name: getattr(manager.hook, name) for name in implemented_hooks(manager)}
    return tuple((name, tuple(caller.get_hookimpls()[0].argnames)) for name, caller in callers.items())


def name_of(boundary: BoundaryRow) -> str:
    return f"{boundary.kind} {boundary.key} {boundary.epoch} {boundary.from_session} {boundary.to_session}"


class ObservedHooks(HookRunner):
    """The real runner. Plugins are not told the key that a hook is queued for; the checks are."""

    def _start(self, key: SessionKey, hooks: Sequence[QueuedHook], lease: Lease) -> None:
        token = KEY.set(key)
        try:
            super()._start(key, hooks, lease)
        finally:
            KEY.reset(token)
