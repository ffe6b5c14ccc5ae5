"""Plugin hooks: the list of them, loading from entry points, and calling what boundaries have written down.

The session hooks are rows that `lifecycle` writes with the boundary. They are called after the commit, in order per
key, at least once, each within a bound. One that raises or hangs is reported and changes nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pluggy

from everthread.daemon_thread import in_daemon_thread
from everthread.domain.model import HookCall, Lease, Session, SessionKey, Turn
from everthread.ports import Clock, Store, UnitOfWork
from everthread.ports.store import BoundaryRow, Incident, QueuedHook

log = logging.getLogger("everthread.plugins")

GROUP = "everthread.plugins"
HOOKS_LANE = "hooks"
HOOK_S_MAX = 5.0
ATTEMPTS_MAX = 3
_AT_ONCE = 100

hookspec = pluggy.HookspecMarker("everthread")
hookimpl = pluggy.HookimplMarker("everthread")


class Hooks:
    """What a plugin may implement. Take only the arguments you need."""

    @hookspec
    def on_session_start(self, session: Session) -> None:
        """A session was opened that was not there before."""

    @hookspec
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        """A session was left: by a command, by expiry, or because this process stops."""

    @hookspec
    def on_session_reset(self, session_id: str, platform: str) -> None:
        """A fresh session has taken the place of the one finalized before."""

    @hookspec
    def on_boundary(self, boundary: BoundaryRow) -> None:
        """Any boundary, as the audit trail keeps it."""

    @hookspec
    def on_turn_end(self, turn: Turn) -> None:
        """A turn was committed."""

    @hookspec
    def pre_model_call(self, ref: Any, model: str) -> None:
        """The model is about to be called for a turn."""

    @hookspec
    def post_model_call(self, ref: Any, model: str, usage: Any) -> None:
        """The model has answered."""

    @hookspec
    def pre_tool_call(self, ref: Any, name: str, arguments: str) -> None:
        """A tool is about to run."""

    @hookspec
    def post_tool_call(self, ref: Any, name: str, result: str) -> None:
        """A tool has run."""


def loaded(plugins: Iterable[object] = (), *, entry_points: bool = True) -> pluggy.PluginManager:
    """The plugins given, and those of installed packages. One that can't be loaded is reported and left out."""
    manager = pluggy.PluginManager("everthread")
    manager.add_hookspecs(Hooks)
    for plugin in plugins:
        manager.register(plugin)
    if entry_points:
        _load_entry_points(manager)
    return manager


def _load_entry_points(manager: pluggy.PluginManager) -> None:
    from importlib.metadata import entry_points  # noqa: PLC0415 - costs 10 ms that a help text need not pay

    for entry in entry_points(group=GROUP):
        try:
            manager.register(entry.load(), name=entry.name)
        except Exception as error:  # noqa: BLE001 - a broken plugin must not keep the rest from starting
            log.warning("plugin %s can't be loaded: %s", entry.name, error)


def wanted(manager: pluggy.PluginManager) -> frozenset[str]:
    """The hooks that some plugin implements: only these are written down."""
    return frozenset(name for name in vars(manager.hook) if getattr(manager.hook, name).get_hookimpls())


def arguments(uow: UnitOfWork, call: HookCall) -> dict[str, Any]:
    """The keyword arguments of a hook, from the rows it was written down about."""
    match call.hook:
        case "on_session_start":
            return {"session": uow.sessions.get(call.session_id)}
        case "on_boundary":
            return {"boundary": uow.sessions.boundary(int(call.detail["id"]))}
        case "on_turn_end":
            return {"turn": uow.turns.get(call.session_id, int(call.detail["number"]))}
        case _:
            return {"session_id": call.session_id, "platform": call.platform}


class HookRunner:
    """Calls the hooks that wait, as the drain of one lane."""

    def __init__(
        self, store: Store, clock: Clock, manager: pluggy.PluginManager, *, hook_s_max: float = HOOK_S_MAX
    ) -> None:
        self._store = store
        self._clock = clock
        self._manager = manager
        self._hook_s_max = hook_s_max

    async def drain(self, lease: Lease) -> float | None:
        waiting = await self._store.read(lambda uow: uow.lanes.hooks(_AT_ONCE))
        by_key: dict[SessionKey, list[QueuedHook]] = {}
        for hook in waiting:
            by_key.setdefault(hook.key, []).append(hook)
        await asyncio.gather(*(self._run(hooks, lease) for hooks in by_key.values()))
        return self._clock.now() if len(waiting) == _AT_ONCE else None

    async def _run(self, hooks: Sequence[QueuedHook], lease: Lease) -> None:
        for hook in hooks:
            await self._write(lease, lambda uow, hook=hook: uow.lanes.hook_tried(hook.id))
            problems = ["given up: it has taken the process down before"]
            if hook.attempts < ATTEMPTS_MAX:
                problems = await self._call(hook.call)
            await self._write(lease, lambda uow, hook=hook, problems=problems: self._done(uow, hook, problems))

    async def _call(self, call: HookCall) -> list[str]:
        """Call every plugin's implementation, whatever the others do; what went wrong."""
        problems: list[str] = []
        given = await self._store.read(lambda uow: arguments(uow, call))
        for implementation in getattr(self._manager.hook, call.hook).get_hookimpls():
            named = {name: given[name] for name in implementation.argnames}
            try:
                async with asyncio.timeout(self._hook_s_max):
                    returned = await in_daemon_thread(partial(implementation.function, **named), f"hook:{call.hook}")
                    if inspect.isawaitable(returned):
                        await returned
            except TimeoutError:
                problems.append(f"{implementation.plugin_name}: no return within {self._hook_s_max:g} s")
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; it is reported
                problems.append(f"{implementation.plugin_name}: {error!r}")
        return problems

    def _done(self, uow: UnitOfWork, hook: QueuedHook, problems: list[str]) -> None:
        uow.lanes.drop_hook(hook.id)
        for problem in problems:
            log.warning("%s: %s", hook.call.hook, problem)
            uow.lanes.add_incident(Incident(self._clock.now(), f"hook:{hook.call.hook}", hook.call.session_id, problem))

    async def _write(self, lease: Lease, work: Callable[[UnitOfWork], None]) -> None:
        def checked(uow: UnitOfWork) -> None:
            uow.lanes.check(lease)
            work(uow)

        await self._store.write(checked)
