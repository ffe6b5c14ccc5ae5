"""Composition root: wire store, lifecycle, memory, agent and gateway together on one home."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from everthread.adapters.lanes.local import LocalLanes
from everthread.adapters.memory.builtin import BUILTIN, BuiltinMemory
from everthread.adapters.sqlite.connection import BUSY_S_MAX
from everthread.adapters.sqlite.lock_holder import find_lock_holder
from everthread.adapters.sqlite.store import SqliteStore
from everthread.bootstrap.clock import SystemClock, loop_time, ulids
from everthread.bootstrap.inspection import Inspection
from everthread.bootstrap.process_locks import ProcessLocks
from everthread.config.schema import Settings
from everthread.domain.backoff import Backoff
from everthread.domain.clock_rules import is_waiting
from everthread.domain.errors import EverthreadError, StoreBusy, StoreError
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, Reply
from everthread.domain.reset_policy import ResetPolicies
from everthread.lifecycle import Lifecycle, NoteChange
from everthread.lifecycle.forget import is_forgotten
from everthread.lifecycle.notes import write_note
from everthread.memory import MemoryManager, NoteFiles
from everthread.memory.legacy_providers import as_provider
from everthread.memory.note_files import folder_for
from everthread.plugins import HookRunner, implemented_hooks, load_installed, load_plugins, plugin_context_engine
from everthread.ports.clock import Clock
from everthread.ports.context import ContextEngine
from everthread.ports.memory import MemoryProvider
from everthread.ports.platform import Platform
from everthread.ports.tools import Tool
from everthread.store.derived_text import WRITTEN
from everthread.store.incidents import Incident
from everthread.store.recall_scope import RecallScopes
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.trust.decisions import TrustFile, trust_file
from everthread.trust.installed_plugins import PluginTrust

if TYPE_CHECKING:
    from everthread.agent.model_call import ModelChoice
    from everthread.agent.rights import RightsLookup
    from everthread.agent.skills.folders import SkillFolders
    from everthread.agent.turn import Agent
    from everthread.bootstrap.agent import AgentParts
    from everthread.bootstrap.memory_providers import ConfiguredProvider
    from everthread.gateway.scheduler import Scheduler
    from everthread.gateway.server import Gateway
    from everthread.lifecycle.home_files import HomeFiles
    from everthread.lifecycle.schedules import ScheduleService
    from everthread.web import Web

log = logging.getLogger("everthread")

T = TypeVar("T")

TIMERS_LANE = "timers"
DRAIN_S_MAX = 2.0
STOP_S_MAX = 5.0
SHUTDOWN_S_MAX = 2.0
LANES_RESTART = Backoff(first_s=1.0, max_s=60.0)
LOCK_WAIT_S_MAX = 30.0
"""Time limit of a start for a process that holds the write lock."""
_POLL_S = 0.02


class Runtime(Inspection):
    """The core, wired up on one home. Entering it opens the store; leaving it stops every started service.

    No lane is served before `start`, so a command that only reads the store changes nothing and holds no lease. Only a
    process with `policies` serves the timers, and only one with plugins serves the hooks: without them it could not
    decide which are due.
    """

    store: Store
    lifecycle: Lifecycle
    memory: MemoryManager
    note_files: NoteFiles

    agent: Agent
    """Set by `ready`."""
    rights: RightsLookup
    """Set by `ready`."""

    def __init__(
        self,
        settings: Settings,
        *,
        providers: Sequence[object] = (),
        plugins: Sequence[object] = (),
        tools: Sequence[Tool] = (),
        policies: ResetPolicies | None = None,
        clock: Clock | None = None,
        project: Path | None = None,
        platforms: Sequence[Platform] = (),
        busy_s_max: float = BUSY_S_MAX,
        lock_wait_s_max: float = LOCK_WAIT_S_MAX,
    ) -> None:
        """Create a runtime without opening the store.

        `project` is the user's working folder; its skills are offered besides the user's own. `platforms` are served by
        the gateway besides those in the settings. A write waits `busy_s_max` for another process that holds the write
        lock; opening and starting go on waiting for up to `lock_wait_s_max`.
        """
        self.settings = settings
        self.providers: tuple[MemoryProvider, ...] = ()
        self._extra_providers = tuple(as_provider(provider) for provider in providers)
        self.clock: Clock = clock or SystemClock()
        self.new_id = ulids(self.clock.now)
        self.holder = f"{os.getpid()}-{self.new_id()}"
        self._plugins = plugins
        self.tools = tuple(tools)
        """Tools of the agent besides the built-in ones."""
        self.project = project
        self._policies = policies
        self._platforms = tuple(platforms)
        self._process_locks = ProcessLocks(settings.home / "processes", self.holder)
        self._serving: asyncio.Task[None] | None = None
        self._agent_parts: AgentParts | None = None
        self._stopped = False
        self.lanes_problem = ""
        """The error that stopped the lanes, until they are restarted; empty if they run."""
        self.lane_restarts = 0
        self._busy_s_max, self._lock_wait_s_max = busy_s_max, lock_wait_s_max
        self.on_wait: Callable[[str], None] = log.warning
        """Receives a notice if the start has to wait for another process."""
        self.before_close: Callable[[], Awaitable[None]] = _nothing
        """Called last, while the store is still open. Raises nothing."""

    @property
    def provider_names(self) -> tuple[str, ...]:
        """Names of the memory providers in use, those of the settings first. Needs no open store."""
        return (*self.settings.memory.providers, *(provider.name for provider in self._extra_providers))

    async def __aenter__(self) -> Self:
        self._manager = manager = load_plugins(self._plugins)
        self._plugin_problems = load_installed(manager, PluginTrust(self.settings.plugins.allow, self.trust))
        self._hooks = implemented_hooks(manager)
        # Before the store is opened: a missing provider raises, and there is nothing to close.
        configured = self._configured_providers()
        self.store = await self.when_writable(
            lambda: SqliteStore.open(self.settings.db_path, busy_s_max=self._busy_s_max)
        )
        scopes = RecallScopes(self.settings.memory.recall_in_groups)
        builtin = BuiltinMemory(self.store, self.clock, scopes)
        own = (configured[n].provider if n in configured else builtin for n in self.settings.memory.providers)
        self.providers = (*own, *self._extra_providers)
        self.lanes = LocalLanes(self.store, self.clock, self.holder)
        self.lifecycle = Lifecycle(
            self.store,
            self.clock,
            self.new_id,
            holder=self.holder,
            policies=self._policies,
            hooks=self._hooks,
            review_every=self.settings.review.every_turns,
            expiry_notice_platforms=self.platform_names if self.settings.gateway.notices else frozenset(),
            remove_file=lambda path: (self.settings.media_path / path).unlink(missing_ok=True),
            home_files=self._home_files,
            sync_notes=self.sync_notes,
            forget_skills=lambda sessions: self.skills.forget(sessions),
            quotas=self.settings.quotas,
        )
        self.memory = MemoryManager(
            self.providers,
            self.store,
            self.clock,
            self.lanes,
            random=random.random,
            settings={name: each.settings for name, each in configured.items()},
            scopes=scopes,
        )
        self.note_files = _make_note_files(self.settings, self.store, self.new_id, self.clock)
        self.hooks = HookRunner(self.store, self.clock, manager, wake=self.lanes.wake)
        if self._hooks:
            self.lanes.serve(self.hooks.lane, self.hooks.drain)
        if self._policies is not None:
            self.lanes.serve(TIMERS_LANE, self.lifecycle.expire_due)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop(STOP_S_MAX if error is None else 0.0)

    def _configured_providers(self) -> Mapping[str, ConfiguredProvider]:
        """Return the configured providers besides the built-in one."""
        if self.settings.memory.providers == (BUILTIN,):
            return {}
        from everthread.bootstrap.memory_providers import make_providers

        return make_providers(self.settings)

    async def start(self, *, lock_wait_s: float = 0.0) -> None:
        """Register the providers and serve the lanes, until `stop`.

        `lock_wait_s` is how long to wait for a process that holds the write lock, beyond the wait of every write.
        """
        if self._serving is None:
            await self.when_writable(self._register, lock_wait_s)
            self._serving = asyncio.create_task(self._serve_lanes(), name="lanes")

    async def _serve_lanes(self) -> None:
        """Serve the lanes until cancelled. An unexpected error that ends them is reported, and they are restarted."""
        failures = 0
        while True:
            began = loop_time()
            try:
                await self.lanes.run()
                problem = "they ended"
            except Exception as error:
                problem = _first_of(error)
                log.exception("the lanes have stopped; nothing is delivered until they are restarted")
            # Failures a long time apart are not in a row.
            failures = 1 if loop_time() - began > LANES_RESTART.max_s else failures + 1
            self.lanes_problem = problem
            self.lane_restarts += 1
            await self._report_lanes(problem)
            # Not by the clock of the runtime, whose failure may be what ended the lanes.
            await asyncio.sleep(LANES_RESTART.delay_s(failures))
            log.warning("restarting the lanes (%d since the start)", self.lane_restarts)
            self.lanes_problem = ""

    async def _report_lanes(self, problem: str) -> None:
        try:
            incident = Incident(self.clock.now(), "lanes", None, f"background delivery stopped: {problem}")
            await self.store.write(lambda uow: uow.incidents.add(incident))
        except Exception as error:  # noqa: BLE001 - the store may be the very thing that fails
            log.warning("could not record the incident: %s", error)

    async def when_writable(self, work: Callable[[], Awaitable[T]], wait_s: float | None = None) -> T:
        """Await `work`, which may be repeated, and wait within a bound for a process that holds the write lock.

        Raises `StoreBusy` with the process and what to do about it.
        """
        wait_s = self._lock_wait_s_max if wait_s is None else wait_s
        deadline: float | None = None
        while True:
            try:
                return await work()
            except StoreBusy as error:
                if deadline is None:
                    deadline = loop_time() + wait_s
                    if wait_s > 0.0:
                        self.on_wait(self._describe_wait(wait_s))
                if loop_time() >= deadline:
                    raise StoreBusy(self._describe_lock()) from error

    def _describe_wait(self, wait_s: float) -> str:
        holder = find_lock_holder(self.settings.db_path)
        who = "another process" if holder is None else f"process {holder.process}"
        stopped = " and is stopped" if holder is not None and holder.stopped else ""
        return f"Waiting up to {wait_s:g} s for {who}, which holds the write lock of the store{stopped}."

    def _describe_lock(self) -> str:
        path, holder = self.settings.db_path, find_lock_holder(self.settings.db_path)
        if holder is None:
            others = ", ".join(map(str, self._process_locks.other_processes()))
            known = f" (processes that use this home: {others})" if others else ""
            return f"{path}: Another program holds the write lock{known}. Try again when it is done, or end it."
        number = holder.process
        if holder.stopped:
            return (
                f"{path}: Process {number} holds the write lock and is stopped. Continue it with kill -CONT {number} "
                f"or end it with kill -KILL {number}. Try again after that."
            )
        return f"{path}: Process {number} holds the write lock. Try again when it is done, or end it."

    async def _register(self) -> None:
        await self._release_leases_of_dead_processes()
        await self.memory.start()

    async def _release_leases_of_dead_processes(self) -> None:
        """Release the leases of processes known to be dead. The leases of other processes have to expire."""
        self._process_locks.acquire()
        for holder in self._process_locks.dead_holders():
            await self.store.write(lambda uow, holder=holder: uow.leases.end_process(holder))
            self._process_locks.remove(holder)

    async def ready(self) -> tuple[str, ...]:
        """Start serving and create the agent. Returns one line per problem."""
        from everthread.agent.rights import RightsLookup
        from everthread.bootstrap.agent import AgentParts
        from everthread.config.access import rights_policy

        await self.start(lock_wait_s=self._lock_wait_s_max)
        if self._agent_parts is None:
            self.rights = RightsLookup(self.store, rights_policy(self.settings))
            self._agent_parts = AgentParts(self)
            self.agent = self._agent_parts.agent
            self.lanes.watch(self._agent_parts.stop_cancelled)
        problem = await self.sync_notes(self.settings.owner)
        problems = (*self.settings.warnings, *self._plugin_problems, *filter(None, [problem]))
        return (*problems, *await self._agent_parts.open())

    def gateway(self) -> Gateway:
        """Create the gateway that serves the platforms. Call it after `ready`."""
        from everthread.bootstrap.platforms import make_platforms, make_transcriber
        from everthread.gateway.server import Gateway

        extra = {platform.name for platform in self._platforms}
        platforms = (*self._platforms, *make_platforms(self.settings, self.clock, besides=extra))
        return Gateway(self, platforms, make_transcriber(self.settings))

    @property
    def scheduling(self) -> ScheduleService:
        from everthread.lifecycle.schedules import ScheduleService

        return ScheduleService(self.store, self.clock, self.new_id)

    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler:
        """Create the scheduler that runs scheduled tasks. Call it after `ready`."""
        from everthread.gateway.access import Access
        from everthread.gateway.scheduler import Scheduler

        if self._agent_parts is None:
            raise RuntimeError("call `Runtime.ready` first")
        settings, scheduling = self.settings, self.scheduling
        agent, choices = self._agent_parts.scheduled, self._agent_parts.models.choices
        access = Access(self.store, settings.gateway, settings.platforms, settings.owner)
        return Scheduler(
            self.store,
            self.clock,
            self.lifecycle,
            scheduling,
            agent,
            self.rights,
            choices,
            settings,
            put,
            access.is_excluded,
        )

    def web(self, gateway: Gateway) -> Web:
        """Create the HTTP interface of a gateway without starting it."""
        from everthread.web import Web

        return Web(gateway)

    @property
    def platform_names(self) -> frozenset[str]:
        """Names of the messaging platforms."""
        return frozenset({*self.settings.platforms, *(platform.name for platform in self._platforms)})

    def _home_files(self) -> HomeFiles:
        from everthread.lifecycle.home_files import HomeFiles

        return HomeFiles(self.settings.home, self.settings.owner)

    async def sync_notes(self, owner: str) -> str:
        """Synchronise an owner's note files with the store. Returns the problem, or an empty text.

        The store is authoritative, so an unreadable or unwritable file is no error.
        """
        try:
            await self.note_files.sync(owner)
        except (OSError, EverthreadError) as error:
            log.warning("note files: %s", error)
            return f"the note files were not updated: {error}"
        return ""

    def choices(self, model: str = "") -> Sequence[ModelChoice]:
        """Return the named model, or else the configured one, followed by its fallbacks."""
        if self._agent_parts is None:
            raise RuntimeError("call `Runtime.ready` first")
        return self._agent_parts.models.choices(model)

    @property
    def skills(self) -> SkillFolders:
        """Skills of the home's owner and of the project. Needs no open store."""
        from everthread.agent.skills.folders import SkillFolders

        return SkillFolders(self.settings.skills_path, self.project, self.trust, now=self.clock.now)

    @property
    def trust(self) -> TrustFile:
        """The plugins and the projects' skills that the user has approved. Needs no open store."""
        return trust_file(self.settings)

    def context_engine(self) -> ContextEngine | None:
        """Return the context engine of a plugin; None to use the default."""
        return plugin_context_engine(self._manager)

    def known_models(self) -> tuple[str, ...]:
        """Return the names of the models in the settings."""
        settings = self.settings
        named = (settings.model, *settings.fallback_models, settings.auxiliary_model, *settings.prices)
        return tuple(dict.fromkeys(name for name in named if name))

    async def drain(self, bound_s: float = DRAIN_S_MAX) -> bool:
        """Wait until all due deliveries are done, up to the bound. Returns False if some remain.

        The next process delivers the rest. Deliveries that are due only after the bound are not waited for.
        """
        due, deadline = self.clock.now() + bound_s, loop_time() + bound_s
        while await self.store.read(lambda uow: self._is_waiting(uow, due)):
            if self._serving is None or self._serving.done() or loop_time() >= deadline:
                return False
            await self.clock.sleep(_POLL_S)
        return True

    async def stop(
        self, drain_s: float = STOP_S_MAX, *, close_memory: bool = False, shutdown_s: float | None = None
    ) -> None:
        """Suspend the sessions served here, drain within the bound, shut down the providers and release the leases.

        Safe to call twice. No wait for a provider exceeds its bound, and no data is lost at the bound. `close_memory`
        is for a process that was the only one to serve its conversations. `shutdown_s` bounds the closing of the tools,
        and then of the providers, for a process that can't wait.
        """
        if self._stopped:
            return
        self._stopped = True
        try:
            deadline = loop_time() + drain_s
            await self._finish_turns(deadline)
            if self._agent_parts is not None:
                await self._close_agent(self._agent_parts, shutdown_s)
            await self._suspend(close_memory)
            if self._serving is not None:
                await self.drain(max(deadline - loop_time(), 0.0))
        except StoreError as error:
            log.warning("stopped without draining: %s", error)
        finally:
            await self._shut_down(SHUTDOWN_S_MAX if shutdown_s is None else shutdown_s)

    async def _close_agent(self, parts: AgentParts, bound_s: float | None) -> None:
        closing = asyncio.ensure_future(parts.aclose())
        done, _ = await asyncio.wait({closing}, timeout=bound_s)
        if done:
            closing.result()
        else:
            log.warning("a tool did not shut down within %g s", bound_s)
            closing.cancel()

    async def _finish_turns(self, deadline: float) -> None:
        """Wait for the turns of this process until the deadline. The next process resumes those that remain."""
        while loop_time() < deadline and await self.store.read_inline(lambda uow: uow.slots.held_by(self.holder)):
            await self.clock.sleep(_POLL_S)

    async def _suspend(self, close_memory: bool) -> None:
        served = await self.store.read(lambda uow: uow.sessions.served(self.holder))
        if served or self._serving is not None:
            await self.lifecycle.suspend(close_memory=close_memory)

    async def _shut_down(self, shutdown_s: float) -> None:
        try:
            if self._serving is not None:
                self._serving.cancel()
                await asyncio.wait({self._serving})
                await self.hooks.stop()
                await self._shut_down_providers(shutdown_s)
            # The heartbeat kept the turns until here; from now on another process may resume them.
            if await self.store.read_inline(lambda uow: uow.slots.held_by(self.holder)) or self._serving is not None:
                await self.store.write(lambda uow: uow.leases.end_process(self.holder))
        except StoreError as error:
            log.warning("could not release leases; they expire by themselves: %s", error)
        finally:
            self._process_locks.release()
            await self.before_close()
            await self.store.aclose()

    async def _shut_down_providers(self, bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                await self.memory.shutdown()
        except TimeoutError:
            log.warning("a memory provider did not shut down within %g s", bound_s)

    def _is_waiting(self, uow: UnitOfWork, until: float) -> bool:
        """Return True if the lanes served here have work that is due before `until`."""
        if self._hooks and uow.leases.hooks(1, self._hooks):
            return True
        end = uow.log.end()
        rows = [row for row in uow.cursors.providers() if row.name in self.memory.names]
        working = [row for row in rows if not is_waiting(row.open_until, until)]
        return any(row.scanned_pos < end or uow.cursors.due_sessions(row.name, until, 1) for row in working)


def _make_note_files(settings: Settings, store: Store, new_id: Callable[[], str], clock: Clock) -> NoteFiles:
    def write(
        uow: UnitOfWork, action: NoteAction, target: NoteTarget, content: str, note_id: str, owner: str
    ) -> NoteVersion:
        change = NoteChange(action, target, content, note_id, imported=True)
        return write_note(uow, change, WRITTEN, owner=owner, ref=None, new_id=new_id(), now=clock.now())

    return NoteFiles(store, write, lambda owner: notes_folder(settings, owner), is_forgotten)


def notes_folder(settings: Settings, owner: str) -> Path:
    return folder_for(settings.home, owner, mine=settings.owner)


async def _nothing() -> None:
    pass


def _first_of(error: BaseException) -> str:
    """Describe the first error of a group."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _first_of(group.exceptions[0])
    return repr(error)
