"""What every command is handed: the home it works on, and a way to open it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from everthread.agent.model_call import ModelChoice
    from everthread.agent.skills.folders import SkillFolders
    from everthread.agent.turn import Agent
    from everthread.config.provider_settings import Field
    from everthread.config.settings import Settings
    from everthread.domain.model import Reply, Session
    from everthread.gateway.scheduler import Scheduler
    from everthread.gateway.server import Gateway
    from everthread.lifecycle import Lifecycle
    from everthread.lifecycle.schedules import Scheduling
    from everthread.memory import MemoryManager
    from everthread.memory.note_files import Notebook
    from everthread.ports.clock import Clock
    from everthread.ports.memory import MemoryProvider
    from everthread.store.unit_of_work import Contents, Examined, Store

T = TypeVar("T")


class Web(Protocol):
    """A gateway's HTTP side."""

    @property
    def port(self) -> int: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class CliRuntime(Protocol):
    """The part of a wired-up core that commands use."""

    store: Store
    lifecycle: Lifecycle
    memory: MemoryManager
    providers: tuple[MemoryProvider, ...]

    async def sync_notes(self, owner: str) -> str: ...
    async def start(self) -> None: ...
    async def drain(self, bound_s: float = ...) -> bool: ...

    # What conversations use, from `ready` on.
    settings: Settings
    clock: Clock
    holder: str
    """This process, by a name that no other has or ever had."""
    agent: Agent
    notebook: Notebook
    new_id: Callable[[], str]

    @property
    def skills(self) -> SkillFolders: ...
    async def ready(self) -> Sequence[str]: ...
    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def known_models(self) -> tuple[str, ...]: ...
    async def stop(self, drain_s: float = ..., *, close_memory: bool = ..., shutdown_s: float | None = ...) -> None: ...

    @property
    def scheduling(self) -> Scheduling: ...
    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler:
        """From `ready` on."""
        ...

    # What a gateway uses, from `ready` on.
    def gateway(self) -> Gateway: ...
    def web(self, gateway: Gateway) -> Web: ...


class Unopened(Protocol):
    """A core that is wired up once it is entered. What is here needs no store."""

    clock: Clock

    @property
    def provider_names(self) -> tuple[str, ...]: ...
    async def __aenter__(self) -> CliRuntime: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    async def reach(self, model: str = "") -> str: ...
    def known_memories(self) -> dict[str, str]: ...
    def memory_fields(self, name: str) -> Sequence[Field]: ...
    async def try_memory(self, name: str) -> str: ...
    async def hermes_plugins(self) -> dict[str, Any]: ...
    async def try_hermes(self, name: str) -> list[dict[str, Any]]: ...
    async def reach_platform(self, name: str) -> str: ...
    async def try_mcp(self, *, offline: bool = ...) -> dict[str, str]: ...
    async def examine_store(self, bound_s: float) -> Examined: ...
    def inspect_copy(self, path: Path) -> Contents: ...
    def renumber_copy(self, path: Path) -> None: ...
    def forgotten_since(self, copy: Path) -> frozenset[tuple[str, str]]: ...
    def alone(self) -> AbstractContextManager[None]: ...


OpenRuntime = Callable[["Settings"], Unopened]
Glance = Callable[["Path", int], "Sequence[tuple[Session, int]] | None"]
"""The newest conversations of a store with their numbers of turns; None if that takes more than a glance."""


class CliContext:
    """One run of the program. Only `talk` and `serve` make a home: the commands are about what is there already."""

    def __init__(
        self, open_runtime: OpenRuntime, glance: Glance | None = None, open_serving: OpenRuntime | None = None
    ) -> None:
        """`open_serving` opens it for a process that serves people for as long as it lives: see `serve`."""
        self._open_runtime = open_runtime
        self._open_serving = open_serving or open_runtime
        self._glance = glance
        self.home: str | None = None

    @property
    def settings(self) -> Settings:
        from everthread.config import settings as config

        return config.load(self.home)

    def glance(self, limit: int) -> Sequence[tuple[Session, int]] | None:
        """The newest conversations without opening more than must be; None if the store has to be opened for them."""
        return self._glance(self.settings.db_path, limit) if self._glance is not None else None

    def unopened(self, settings: Settings) -> Unopened:
        """For what needs no store, or is not to make one."""
        return self._open_runtime(settings)

    def look(self, work: Callable[[CliRuntime], Awaitable[T]], *, nothing: T) -> T:
        """What `work`, which only reads, finds; `nothing` if there is no store yet."""
        return self._run(work) if self._is_there() else nothing

    def act(self, work: Callable[[CliRuntime], Awaitable[T]]) -> tuple[T, bool]:
        """Do something that others are told of, and give them a moment to hear it; whether all have.

        Raises `NotFound` if there is no store yet.
        """
        from everthread.domain.errors import NotFound

        if not self._is_there():
            raise NotFound(f"nothing is kept in {self.settings.home} yet; give another place with --home")

        async def start_and_drain(runtime: CliRuntime) -> tuple[T, bool]:
            await runtime.start()
            return await work(runtime), await runtime.drain()

        return self._run(start_and_drain)

    def tend(self, work: Callable[[CliRuntime], Awaitable[T]], *, nothing: T) -> T:
        """The same for what also brings something into step before it looks; `nothing` if there is no store yet."""
        return self.act(work)[0] if self._is_there() else nothing

    def talk(self, work: Callable[[CliRuntime], Awaitable[T]]) -> T:
        """Do what needs an agent. This makes the home, if there is none yet, and keeps a log of what happens."""
        return self._logged(work, self._open_runtime)

    def serve(self, work: Callable[[CliRuntime], Awaitable[T]]) -> T:
        """The same for a process that serves platforms, and decides when conversations have expired."""
        return self._logged(work, self._open_serving)

    def _logged(self, work: Callable[[CliRuntime], Awaitable[T]], open_runtime: OpenRuntime) -> T:
        from everthread.log_file import log_to_file

        settings = self.settings
        log = log_to_file(settings)
        try:
            return self._run(work, settings, open_runtime)
        finally:
            if log is not None:
                log.leave()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out what opens the home by itself, if at all."""
        import asyncio
        import logging

        from everthread.config.environment import debugging

        # A command says how it went by itself; what else is worth a warning is kept in the store, and in the log.
        shown = logging.lastResort if debugging() else None
        logging.getLogger("everthread").addHandler(shown or logging.NullHandler())
        return asyncio.run(work)

    def _run(
        self,
        work: Callable[[CliRuntime], Awaitable[T]],
        settings: Settings | None = None,
        open_runtime: OpenRuntime | None = None,
    ) -> T:
        async def run() -> T:
            async with (open_runtime or self._open_runtime)(settings or self.settings) as runtime:
                return await work(runtime)

        return self.run(run())

    def _is_there(self) -> bool:
        from everthread.domain.errors import StoreUnwritable

        path = self.settings.db_path
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreUnwritable(f"{path}: {error.strerror}; choose another home or mend its permissions") from error
        return True


pass_invocation = click.make_pass_decorator(CliContext)


def _set_home(context: click.Context, _: click.Parameter, home: str | None) -> None:
    if home == "":
        raise click.BadParameter("is empty; give a folder")
    if home is not None:
        context.ensure_object(CliContext).home = home


def home_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--home", metavar="PATH", expose_value=False, callback=_set_home, help="The folder to work on."
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        default=20,
        show_default=True,
        help="Show at most this many, newest first.",
    )(command)
