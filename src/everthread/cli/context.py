"""`CliContext`, passed to every command: the home it works on and ways to open it; and options shared by commands."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from everthread.agent.model_call import ModelChoice
    from everthread.agent.rights import RightsLookup
    from everthread.agent.skills.folders import SkillFolders
    from everthread.agent.turn import Agent
    from everthread.config.provider_settings import Field
    from everthread.config.schema import Settings
    from everthread.config.settings import HomePaths
    from everthread.domain.model import Reply, Session
    from everthread.gateway.scheduler import Scheduler
    from everthread.gateway.server import Gateway
    from everthread.lifecycle import Lifecycle
    from everthread.lifecycle.schedules import ScheduleService
    from everthread.log_file import LogFile
    from everthread.memory import MemoryManager
    from everthread.memory.note_files import NoteFiles
    from everthread.ports.clock import Clock
    from everthread.ports.memory import MemoryProvider
    from everthread.ports.tools import ServerReport
    from everthread.store.unit_of_work import RowCounts, Store, StoreCheck

T = TypeVar("T")


class Web(Protocol):
    """The HTTP server of a gateway."""

    @property
    def port(self) -> int | None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class CliRuntime(Protocol):
    """The part of an open runtime that commands use."""

    store: Store
    lifecycle: Lifecycle
    memory: MemoryManager
    providers: tuple[MemoryProvider, ...]

    async def sync_notes(self, owner: str) -> str: ...
    async def start(self) -> None: ...
    async def when_writable(self, work: Callable[[], Awaitable[T]], wait_s: float | None = None) -> T: ...
    async def drain(self, bound_s: float = ...) -> bool: ...

    # Used by conversations, after `ready`.
    settings: Settings
    clock: Clock
    holder: str
    """The unique name of this process."""
    agent: Agent
    note_files: NoteFiles
    new_id: Callable[[], str]
    on_wait: Callable[[str], None]
    """Receives a notice if the start has to wait for another process."""
    before_close: Callable[[], Awaitable[None]]
    """Called last, while the store is still open."""

    rights: RightsLookup

    @property
    def skills(self) -> SkillFolders: ...
    async def ready(self) -> Sequence[str]: ...
    def choices(self, model: str = "") -> Sequence[ModelChoice]: ...
    def known_models(self) -> tuple[str, ...]: ...
    async def stop(self, drain_s: float = ..., *, close_memory: bool = ..., shutdown_s: float | None = ...) -> None: ...

    @property
    def scheduling(self) -> ScheduleService: ...
    def scheduler(self, put: Callable[[Reply], None]) -> Scheduler:
        """Return a scheduler; call it after `ready`."""
        ...

    # Used by a gateway, after `ready`.
    def gateway(self) -> Gateway: ...
    def web(self, gateway: Gateway) -> Web: ...


class UnopenedRuntime(AbstractAsyncContextManager["CliRuntime"], Protocol):
    """A runtime that is opened with `async with`. The methods here need no store."""

    clock: Clock
    on_wait: Callable[[str], None]

    @property
    def provider_names(self) -> tuple[str, ...]: ...
    async def reach(self, model: str = "") -> str: ...
    def known_memories(self) -> dict[str, str]: ...
    def memory_fields(self, name: str) -> Sequence[Field]: ...
    async def try_memory(self, name: str) -> str: ...
    async def hermes_plugins(self) -> dict[str, Any]: ...
    async def try_hermes(self, name: str) -> list[dict[str, Any]]: ...
    async def reach_platform(self, name: str) -> str: ...
    async def try_mcp(self, *, offline: bool = ...) -> ServerReport: ...
    async def examine_store(self, bound_s: float) -> StoreCheck: ...
    def inspect_copy(self, path: Path) -> RowCounts: ...
    def renumber_copy(self, path: Path) -> None: ...
    def drop_lost_tokens(self, path: Path) -> bool: ...
    def forgotten_since(self, copy: Path) -> frozenset[tuple[str, str]]: ...
    def exclusive_access(self) -> AbstractContextManager[None]: ...
    def restore_hint(self) -> str: ...
    def record_backup(self, archive: Path) -> None: ...
    def known_backups(self) -> tuple[Any, ...]: ...
    def accept_restored(self, backups: tuple[Any, ...]) -> None: ...


OpenRuntime = Callable[["Settings"], UnopenedRuntime]
ListNewest = Callable[["Path", int], "Sequence[tuple[Session, int]] | None"]
"""Read the newest sessions of a store with their numbers of turns, without a runtime; None if that is not possible."""


class CliContext:
    """One run of the program. Only `open_home` and `serve` create a home; `read` and `write` use an existing one."""

    def __init__(
        self, open_runtime: OpenRuntime, list_newest: ListNewest | None = None, open_serving: OpenRuntime | None = None
    ) -> None:
        """`open_serving` opens the runtime of a gateway; see `serve`."""
        self._open_runtime = open_runtime
        self._open_serving = open_serving or open_runtime
        self._list_newest = list_newest
        self.home: str | None = None

    @property
    def settings(self) -> Settings:
        from everthread.config import settings as config

        return config.load(self.home)

    @property
    def home_paths(self) -> HomePaths:
        """The paths of the home and its configuration files. Unlike `settings`, reads no file."""
        from everthread.config.settings import home_paths

        return home_paths(self.home)

    def list_newest(self, limit: int) -> Sequence[tuple[Session, int]] | None:
        """List the newest sessions without opening a runtime; None if a runtime is needed."""
        return self._list_newest(self.settings.db_path, limit) if self._list_newest is not None else None

    def unopened_runtime(self, settings: Settings) -> UnopenedRuntime:
        """Return a runtime for work that needs no store, or must not create one."""
        return self._open_runtime(settings)

    def read(self, work: Callable[[CliRuntime], Awaitable[T]], *, default: T) -> T:
        """Run `work`, which only reads; return `default` if there is no store yet."""
        return self._run(work) if self.has_store() else default

    def read_existing(self, work: Callable[[CliRuntime], Awaitable[T]], name: str = "") -> T:
        """Run `work`, which only reads. Raises `NotFound` if there is no store yet; the message mentions `name`."""
        self._require_store(name)
        return self._run(work)

    def write(self, work: Callable[[CliRuntime], Awaitable[T]]) -> T:
        """Run `work`, then deliver to memory providers for a moment. Raises `NotFound` if there is no store yet."""
        self._require_store()

        async def start_and_drain(runtime: CliRuntime) -> T:
            await runtime.start()
            result = await work(runtime)
            await runtime.drain()
            return result

        return self._run(start_and_drain)

    def write_if_exists(self, work: Callable[[CliRuntime], Awaitable[T]], *, default: T) -> T:
        """Run `work` as `write` does; return `default` if there is no store yet."""
        return self.write(work) if self.has_store() else default

    def _require_store(self, name: str = "") -> None:
        from everthread.domain.errors import NotFound

        if not self.has_store():
            prefix = f"no {name[:100]!r}: " if name else ""
            raise NotFound(f"{prefix}no data in {self.settings.home} yet; choose another home with --home")

    def open_home(
        self, work: Callable[[CliRuntime], Awaitable[T]], before: Callable[[Settings], None] | None = None
    ) -> T:
        """Run `work` with the log file open. Creates the home if it does not exist.

        `before` is called first: no plugin is loaded yet, and nothing is shown.
        """
        return self._run_logged(work, self._open_runtime, before)

    def serve(self, work: Callable[[CliRuntime], Awaitable[T]]) -> T:
        """Run `work` with the runtime of a gateway, which also expires sessions. Creates the home and the log."""
        return self._run_logged(work, self._open_serving)

    def _run_logged(
        self,
        work: Callable[[CliRuntime], Awaitable[T]],
        open_runtime: OpenRuntime,
        before: Callable[[Settings], None] | None = None,
    ) -> T:
        from everthread.log_file import log_to_file

        settings = self.settings
        if before is not None:
            before(settings)
        log = log_to_file(settings)
        try:
            return self._run(work, settings, open_runtime, log)
        finally:
            if log is not None:
                log.leave()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that opens the home itself, or does not need it."""
        import asyncio
        import logging

        from everthread.config.environment import debugging

        # Commands report errors themselves; warnings go to the log file and the store, not to stderr.
        shown = logging.lastResort if debugging() else None
        logging.getLogger("everthread").addHandler(shown or logging.NullHandler())
        return asyncio.run(work)

    def _run(
        self,
        work: Callable[[CliRuntime], Awaitable[T]],
        settings: Settings | None = None,
        open_runtime: OpenRuntime | None = None,
        log: LogFile | None = None,
    ) -> T:
        async def run() -> T:
            unopened = (open_runtime or self._open_runtime)(settings or self.settings)
            unopened.on_wait = lambda text: click.echo(f"everthread: {text}", err=True)
            async with unopened as runtime:
                if log is None:
                    return await work(runtime)
                from everthread.cli.error_details import store_details

                async with store_details(log, runtime.store) as runtime.before_close:
                    return await work(runtime)

        return self.run(run())

    def has_store(self) -> bool:
        from everthread.domain.errors import StoreUnwritable

        path = self.settings.db_path
        try:
            os.stat(path)
        except FileNotFoundError:
            # The store itself reports a database that was here and is missing.
            return os.path.exists(f"{path}.sentinel")
        except OSError as error:
            raise StoreUnwritable(f"{path}: {error.strerror}; fix its permissions, or choose another home") from error
        return True


pass_cli = click.make_pass_decorator(CliContext)


def _set_home(context: click.Context, _: click.Parameter, home: str | None) -> None:
    if home == "":
        raise click.BadParameter("is empty. Give a folder")
    if home is not None:
        context.ensure_object(CliContext).home = home


home_option = click.option("--home", metavar="PATH", expose_value=False, callback=_set_home, help="Home folder to use.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
owner_option = click.option("--owner", metavar="O", default="", help="Owner of it. Default: you.")
limit_option = click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Show at most N, newest first.",
)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --home to a command, and pass it the `CliContext`."""
    return json_option(home_option(pass_cli(command)))


def list_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, --limit and --home to a command, and pass it the `CliContext`."""
    return json_option(limit_option(home_option(pass_cli(command))))
