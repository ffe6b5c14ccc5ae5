"""Operations of a runtime that need no open store: checks of services, and work on copies of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from everthread.adapters.sqlite.maintenance import (
    drop_automatic_tokens,
    examine,
    exclusive_access,
    inspect,
    read_tombstones,
    renumber,
)
from everthread.adapters.sqlite.sentinel import (
    KnownBackup,
    known_backups,
    record_backup,
    recreate_sentinel,
    restore_hint,
)
from everthread.config.schema import Settings
from everthread.domain.errors import EverthreadError, ModelUnavailable, Unavailable
from everthread.domain.model import Message, Role
from everthread.ports.clock import Clock
from everthread.ports.tools import ServerReport
from everthread.store.unit_of_work import RowCounts, StoreCheck

if TYPE_CHECKING:
    from typing import Any

    from everthread.config.provider_settings import Field


REACH_S_MAX = 30.0
LOCAL_S_MAX = 90.0
"""Longer, because a local model has to start first."""
MEMORY_S_MAX = 20.0
SHUTDOWN_S_MAX = 2.0
_OUTPUT_TOKENS = 16


class Inspection:
    """Base of `Runtime` with the operations that need no open store. Each imports its dependencies on use."""

    settings: Settings
    clock: Clock

    async def reach(self, model: str = "") -> str:
        """Send a one-word request to a model, or to the configured one. Returns its name after the first output.

        Raises `ModelError`.
        """
        from everthread.bootstrap.agent import Models
        from everthread.ports.model import Prompt, Request

        models = Models(self.settings)
        try:
            choice = models.choices(model)[0]
            is_local = self.settings.providers[choice.name.partition("/")[0]].kind == "local"
            bound_s = LOCAL_S_MAX if is_local else REACH_S_MAX
            head = choice.client.head(Prompt(choice.model, "Answer with one word."))
            request = Request(head, b"", (Message(Role.USER, "Say hello."),), output_tokens_max=_OUTPUT_TOKENS)
            try:
                async with asyncio.timeout(bound_s), aclosing(choice.client.stream(request)) as pieces:
                    async for _ in pieces:
                        break
            except TimeoutError as error:
                raise ModelUnavailable(f"{choice.name} did not answer within {bound_s:g} s") from error
            return choice.name
        finally:
            await models.aclose()

    def known_memories(self) -> dict[str, str]:
        """Return the memory providers to choose from besides the built-in one, with descriptions."""
        from everthread.bootstrap.memory_providers import known_providers

        return known_providers()

    def memory_fields(self, name: str) -> Sequence[Field]:
        """Return the settings of a memory provider."""
        from everthread.bootstrap.memory_providers import provider_fields

        return provider_fields(name)

    async def try_memory(self, name: str) -> str:
        """Start a memory provider, check its health and stop it. Raises `BadConfig` or `Unavailable`."""
        from everthread.bootstrap.memory_providers import make_provider
        from everthread.memory.provider_calls import Caller

        described = make_provider(name, self.settings)
        caller = Caller(described.provider, described.settings)
        try:
            await caller.ready(MEMORY_S_MAX)
            status = await caller.call("health", timeout_s=MEMORY_S_MAX) if caller.has("health") else "ok"
        except EverthreadError:
            raise
        except Exception as error:
            # A provider from another package may raise any exception.
            raise Unavailable(name, f"its health check failed: {str(error) or repr(error)}") from error
        finally:
            if caller.has("shutdown"):
                with suppress(Exception):
                    await caller.call("shutdown", timeout_s=SHUTDOWN_S_MAX)
        if status != "ok":
            raise Unavailable(name, str(status).removeprefix(f"{name}: "))
        return str(status)

    async def hermes_plugins(self) -> dict[str, Any]:
        """Return the memory plugins in the environment of Hermes Agent. Raises `BadConfig`."""
        from everthread.bootstrap.hermes_plugins import list_plugins

        return await list_plugins(self.settings)

    async def try_hermes(self, name: str) -> list[dict[str, Any]]:
        """Test the hooks of a Hermes Agent plugin, step by step. Raises `BadConfig`."""
        from everthread.bootstrap.hermes_plugins import try_plugin

        return await try_plugin(self.settings, name)

    async def reach_platform(self, name: str) -> str:
        """Connect to a platform and return the account's name there. Raises `BadConfig` or `PlatformError`.

        A platform from another package is only created, because the `Platform` port can't return the account's name.
        """
        from everthread.bootstrap.platforms import make_platform

        platform = make_platform(self.settings, self.clock, name)
        try:
            if self.settings.platforms[name].kind != "telegram":
                return name
            from everthread.adapters.platforms.telegram import TelegramPlatform

            assert isinstance(platform, TelegramPlatform)
            return f"@{(await platform.who()).username}"
        finally:
            await platform.aclose()

    async def try_mcp(self, *, offline: bool = False) -> ServerReport:
        """Start and stop the MCP servers; return their problems and tools. `offline` skips remote servers."""
        from everthread.bootstrap.agent import enabled_servers, mcp_servers

        enabled = enabled_servers(self.settings)
        wanted = {name: server for name, server in enabled.items() if server.command or not offline}
        if not wanted:
            return ServerReport({}, ())
        servers = mcp_servers(self.settings, wanted, self.clock)
        try:
            await servers.start()
            return ServerReport(servers.problems(), servers.tools())
        finally:
            await servers.aclose()

    async def examine_store(self, bound_s: float) -> StoreCheck:
        """Check the database file without opening it as a store."""
        return await asyncio.to_thread(examine, self.settings.db_path, bound_s)

    def inspect_copy(self, path: Path) -> RowCounts:
        """Return the contents of a copy of a store. Raises if it is damaged or of another version."""
        return inspect(path)

    def forgotten_since(self, copy: Path) -> frozenset[tuple[str, str]]:
        """Return the kind and id of everything forgotten in the store but not in a copy."""
        return read_tombstones(self.settings.db_path) - read_tombstones(copy)

    def renumber_copy(self, path: Path) -> None:
        """Prepare a copy of a store for use: providers know keys that it does not contain."""
        renumber(path, self.clock.now())

    def drop_lost_tokens(self, path: Path) -> bool:
        """Remove the automatic token of a copy unless its text is in this home. Return whether it was removed."""
        from everthread.lifecycle.local_token import read_private

        return drop_automatic_tokens(path, read_private(self.settings.local_token_path))

    def restore_hint(self) -> str:
        """Say how to restore the newest good backup of the store."""
        return restore_hint(self.settings.db_path)

    def record_backup(self, archive: Path) -> None:
        """Remember a verified backup, to name it when one is needed."""
        record_backup(self.settings.db_path, archive, self.clock.now())

    def known_backups(self) -> tuple[KnownBackup, ...]:
        """Return the backups that were made of the store. Give them to `accept_restored` after it was replaced."""
        return known_backups(self.settings.db_path)

    def accept_restored(self, backups: tuple[KnownBackup, ...]) -> None:
        """Make a sentinel for a database that has taken the place of another."""
        recreate_sentinel(self.settings.db_path, backups)

    def exclusive_access(self) -> AbstractContextManager[None]:
        """Keep other processes from opening the store. Raises `StoreBusy` if one has it open."""
        return exclusive_access(self.settings.db_path)
