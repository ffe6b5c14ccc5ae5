"""Plugin hooks: their specification, loading plugins from entry points, and running queued hook calls.

`lifecycle` queues session hooks as rows, in the transaction of the boundary. A process that implements a hook calls it
after the commit, in order per key, at least once, with a timeout. A hook that raises or hangs is reported, and has no
other effect. A plugin with too many hanging calls is not called until one of them returns.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from everthread.concurrency import as_exception, in_daemon_thread
from everthread.domain.errors import Fenced, StoreError
from everthread.domain.model import HookCall, Lease, Session, SessionKey, Turn
from everthread.log_context import Private, log_scope
from everthread.ports.clock import Clock
from everthread.ports.context import ContextEngine
from everthread.store.incidents import Incident
from everthread.store.leases import QueuedHook
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.trust.decisions import Trust
from everthread.trust.installed_plugins import InstalledPlugin, PluginTrust, describe, why_not_loaded

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("everthread.plugins")

GROUP = "everthread.plugins"
HOOK_S_MAX = 5.0
ATTEMPTS_MAX = 3
STUCK_MAX = 4
AT_ONCE = 100

T = TypeVar("T")

hookspec = pluggy.HookspecMarker("everthread")
hookimpl = pluggy.HookimplMarker("everthread")


class Hooks:
    """The hooks that a plugin may implement. An implementation declares only the arguments it needs."""

    @hookspec
    def on_session_start(self, session: Session) -> None:
        """Called after a session was created."""

    @hookspec
    def on_session_finalize(self, session_id: str, platform: str) -> None:
        """Called after a key left a session: by a command, by expiry, or because this process stops."""

    @hookspec
    def on_session_reset(self, session_id: str, platform: str) -> None:
        """Called after an empty session replaced the finalized one."""

    @hookspec
    def on_boundary(self, boundary: BoundaryRow) -> None:
        """Called after each boundary, with its row of the audit trail."""

    @hookspec
    def on_turn_end(self, turn: Turn) -> None:
        """Called after a turn was committed."""

    @hookspec
    def pre_model_call(self, ref: Any, model: str) -> None:
        """Called before each model call of a turn."""

    @hookspec
    def post_model_call(self, ref: Any, model: str, usage: Any) -> None:
        """Called after the model has answered."""

    @hookspec
    def pre_tool_call(self, ref: Any, name: str, arguments: str) -> None:
        """Called before a tool runs."""

    @hookspec
    def post_tool_call(self, ref: Any, name: str, result: str) -> None:
        """Called after a tool has run."""

    @hookspec(firstresult=True)
    def context_engine(self) -> ContextEngine | None:
        """Return the context engine that replaces the built-in one. Called once, when the agent is created."""


def load_plugins(plugins: Iterable[object] = ()) -> pluggy.PluginManager:
    """Load plugins that are passed in code. These need no approval."""
    manager = pluggy.PluginManager("everthread")
    manager.add_hookspecs(Hooks)
    for plugin in plugins:
        manager.register(plugin)
    return manager


def load_installed(manager: pluggy.PluginManager, trust: PluginTrust) -> tuple[str, ...]:
    """Load the approved plugins of installed packages.

    Returns a line for each one that nobody has decided about, with what to do. A plugin that fails to load is logged
    and left out. No module of a plugin that is not approved is imported.
    """
    problems: list[str] = []
    for plugin, entry in find_installed():
        state = trust.state(plugin)
        if state is not Trust.APPROVED:
            if state is not Trust.REFUSED:
                says, fix = why_not_loaded(plugin, state)
                problems.append(f"{says}. To change that: {fix}")
                log.warning("plugin %s is not loaded: it is %s", entry.name, state.value)
            continue
        try:
            manager.register(entry.load(), name=entry.name)
        except Exception as error:  # noqa: BLE001 - a broken plugin must not keep the rest from starting
            log.warning("plugin %s can't be loaded: %s", entry.name, error)
    return tuple(problems)


def find_installed() -> list[tuple[InstalledPlugin, EntryPoint]]:
    """Describe the plugins of installed packages, without importing them."""
    if not has_plugins(sys.path):
        return []
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes as long to import as half of the program

    return describe(entry_points(group=GROUP))


def has_plugins(folders: Iterable[str]) -> bool:
    """Return True if a package in these folders may have plugins. Much cheaper than reading all entry points."""
    for folder in folders:
        if os.path.isfile(folder):
            # A zip archive, which only importlib can read.
            return True
        with suppress(OSError):
            for name in os.listdir(folder or os.curdir):
                if name.endswith((".dist-info", ".egg-info")) and _declares(os.path.join(folder, name)):
                    return True
    return False


def _declares(package: str) -> bool:
    try:
        with open(os.path.join(package, "entry_points.txt"), "rb") as file:
            return GROUP.encode() in file.read()
    except OSError:
        return False


def implemented_hooks(manager: pluggy.PluginManager) -> frozenset[str]:
    """Return the hooks that at least one plugin implements. Only these are queued."""
    names = (name for name in vars(manager.hook) if name != "context_engine")
    return frozenset(name for name in names if getattr(manager.hook, name).get_hookimpls())


def plugin_context_engine(manager: pluggy.PluginManager) -> ContextEngine | None:
    """Return the context engine of the first plugin that has one. An error is logged, and gives None."""
    try:
        return manager.hook.context_engine()
    except Exception as error:  # noqa: BLE001 - as with a plugin that can't be loaded
        log.warning("the context engine of the plugin is not used: %s", error)
        return None


def arguments(uow: UnitOfWork, call: HookCall) -> dict[str, Any]:
    """Read the keyword arguments of a queued hook from the stored rows."""
    match call.hook:
        case "on_session_start":
            return {"session": uow.sessions.get(call.session_id)}
        case "on_boundary":
            return {"boundary": uow.sessions.boundary(int(call.detail["id"]))}
        case "on_turn_end":
            return {"turn": uow.turns.get(call.session_id, int(call.detail["number"]))}
        case _:
            return {"session_id": call.session_id, "platform": call.platform}


def lane_name(names: Iterable[str]) -> str:
    """Return the lane of a set of hooks. Processes with the same hooks share a lane; others do not block each other."""
    return "hooks:" + hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:12]


class HookRunner:
    """Drain the lane of queued hooks that the plugins of this process implement."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        manager: pluggy.PluginManager,
        *,
        wake: Callable[[str], None] = lambda lane: None,
        hook_s_max: float = HOOK_S_MAX,
    ) -> None:
        self._store = store
        self._clock = clock
        self._manager = manager
        self._wake = wake
        self.names = implemented_hooks(manager)
        self.lane = lane_name(self.names)
        self._running: dict[SessionKey, asyncio.Task[None]] = {}
        self._plugins: defaultdict[str, _Plugin] = defaultdict(lambda: _Plugin(hook_s_max))

    async def drain(self, lease: Lease) -> float | None:
        """Start a task for each key with queued hooks. Never waits for a plugin.

        Returns the time of the next drain if more hooks may be queued, else None.
        """
        # Read before the rows: a task that ends in between has already called some of the hooks read.
        going = tuple(self._running)
        if len(going) >= AT_ONCE:
            return None
        waiting = await self._store.read(lambda uow: uow.leases.hooks(AT_ONCE, self.names, going))
        by_key: dict[SessionKey, list[QueuedHook]] = {}
        for hook in waiting:
            by_key.setdefault(hook.key, []).append(hook)
        for key, hooks in by_key.items():
            if key not in going:
                self._start(key, hooks, lease)
        return self._clock.now() if len(waiting) == AT_ONCE else None

    async def notify(self, hook: str, **values: Any) -> None:
        """Call a hook immediately, without queueing it, with the same timeout. Errors are only logged."""
        if hook in self.names:
            for problem in await self._call_all(hook, values):
                log.warning("%s: %s", hook, problem)

    async def stop(self) -> None:
        """Cancel the running hook calls. The next process calls them again."""
        tasks = set(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, key: SessionKey, hooks: Sequence[QueuedHook], lease: Lease) -> None:
        self._running[key] = task = asyncio.ensure_future(self._run(hooks, lease))

        def finished(task: asyncio.Task[None]) -> None:
            del self._running[key]
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                self._wake(self.lane)
            elif isinstance(error, Fenced | StoreError):
                log.warning("hooks of %s: %s", key, error)
            else:
                log.error("calling the hooks of %s failed", key, exc_info=error)

        task.add_done_callback(finished)

    async def _run(self, hooks: Sequence[QueuedHook], lease: Lease) -> None:
        for hook in hooks:
            if not await self._write(lease, lambda uow, hook=hook: uow.leases.count_hook_attempt(hook.id)):
                continue  # a process with another set of hooks has called it in the meantime
            problems = [Private("skipped: an earlier call ended the process", "skipped")]
            if hook.attempts < ATTEMPTS_MAX:
                with log_scope(session=hook.call.session_id or ""):
                    problems = await self._call(hook.call)
            await self._write(lease, lambda uow, hook=hook, problems=problems: self._done(uow, hook, problems))

    async def _call(self, call: HookCall) -> list[Private]:
        return await self._call_all(call.hook, await self._store.read(lambda uow: arguments(uow, call)))

    async def _call_all(self, hook: str, values: dict[str, Any]) -> list[Private]:
        """Call the implementation of every plugin, also after one fails. Return the problems."""
        problems: list[Private] = []
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            named = {name: values[name] for name in implementation.argnames}
            plugin = self._plugins[implementation.plugin_name]
            problem = await plugin.call(partial(implementation.function, **named), f"hook:{hook}")
            if problem is not None:
                problems.append(Private(f"{implementation.plugin_name}: {problem}", problem.kind))
        return problems

    def _done(self, uow: UnitOfWork, hook: QueuedHook, problems: list[Private]) -> None:
        uow.leases.drop_hook(hook.id)
        for problem in problems:
            log.warning("%s: %s", hook.call.hook, problem, extra={"session": hook.call.session_id})
            incident = Incident(self._clock.now(), f"hook:{hook.call.hook}", hook.call.session_id, str(problem))
            uow.incidents.add(incident)

    async def _write(self, lease: Lease, work: Callable[[UnitOfWork], T]) -> T:
        def checked(uow: UnitOfWork) -> T:
            uow.leases.check(lease)
            return work(uow)

        return await self._store.write(checked)


class _Plugin:
    """The calls of one plugin: a few at a time, each with a timeout."""

    def __init__(self, hook_s_max: float) -> None:
        self._hook_s_max = hook_s_max
        self._calls: dict[asyncio.Future[None], float] = {}
        """The calls that have not returned, with the loop time at which each is overdue."""

    async def call(self, function: Callable[[], Any], name: str) -> Private | None:
        """Call the function, unless too many calls hang. Return the problem, or None."""
        if not await self._has_room():
            return Private(f"{STUCK_MAX} calls have not returned", "too many calls")
        call = asyncio.ensure_future(_call_function(function, name))
        self._calls[call] = asyncio.get_running_loop().time() + self._hook_s_max
        call.add_done_callback(self._on_returned)
        try:
            await asyncio.wait({call}, timeout=self._hook_s_max)
        finally:
            # A thread can't be stopped. It counts until it returns, as does a task that ignores its cancellation.
            if inspect.iscoroutinefunction(function):
                call.cancel()
        if not call.done():
            return Private(f"no return within {self._hook_s_max:g} s", "no return in time")
        if call.cancelled():
            return Private("cancelled", "cancelled")
        error = call.exception()
        return Private(repr(error), type(error).__name__) if error is not None else None

    async def _has_room(self) -> bool:
        """Wait for a free call. Return False once all running calls are overdue."""
        while len(self._calls) >= STUCK_MAX:
            left_s = max(self._calls.values()) - asyncio.get_running_loop().time()
            if left_s <= 0:
                return False
            await asyncio.wait(self._calls, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _on_returned(self, call: asyncio.Future[None]) -> None:
        del self._calls[call]
        if not call.cancelled():
            call.exception()


async def _call_function(function: Callable[[], Any], name: str) -> None:
    returned = function() if inspect.iscoroutinefunction(function) else await in_daemon_thread(function, name)
    if inspect.isawaitable(returned):
        try:
            await returned
        except SystemExit as error:
            raise as_exception(error) from error
