"""Operations of a runtime that need no open store: checks of services, and work on copies of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from everthread.adapters.sqlite.maintenance import examine, exclusive_access, inspect, read_tombstones, renumber
from everthread.config.schema import Settings
from everthread.ports.clock import Clock
from everthread.store.unit_of_work import RowCounts, StoreCheck

if TYPE_CHECKING:
    from typing import Any

    from everthread.config.provider_settings import Field


class Inspection:
    """Base of `Runtime` with the operations that need no open store. Each imports its dependencies on use."""

    settings: Settings
    clock: Clock

    async def reach(self, model: str = "") -> str:
        """Send a tiny request to a model, or to the configured one; return its name. Raises `ModelError`."""
        from everthread.bootstrap.probes import reach

        return await reach(self.settings, model)

    def known_memories(self) -> dict[str, str]:
        """Return the memory providers to choose from besides the built-in one, with descriptions."""
        from everthread.bootstrap.memory_providers import known_providers

        return known_providers()

    def memory_fields(self, name: str) -> Sequence[Field]:
        """Return the settings of a memory provider."""
        from everthread.bootstrap.memory_providers import provider_fields

        return provider_fields(name)

    async def try_memory(self, name: str) -> str:
        """Start and stop a memory provider; return its description of itself. Raises its error."""
        from everthread.bootstrap.probes import try_memory

        return await try_memory(self.settings, name)

    async def hermes_plugins(self) -> dict[str, Any]:
        """Return the memory plugins in the environment of Hermes Agent. Raises `BadConfig`."""
        from everthread.bootstrap.hermes_plugins import list_plugins

        return await list_plugins(self.settings)

    async def try_hermes(self, name: str) -> list[dict[str, Any]]:
        """Test the hooks of a Hermes Agent plugin, step by step. Raises `BadConfig`."""
        from everthread.bootstrap.hermes_plugins import try_plugin

        return await try_plugin(self.settings, name)

    async def reach_platform(self, name: str) -> str:
        """Connect to a platform; return the name of the account. Raises `BadConfig` or `PlatformError`."""
        from everthread.bootstrap.probes import reach_platform

        return await reach_platform(self.settings, self.clock, name)

    async def try_mcp(self, *, offline: bool = False) -> dict[str, str]:
        """Start and stop the MCP servers; return the problem of each. `offline` skips remote servers."""
        from everthread.bootstrap.probes import try_mcp

        return await try_mcp(self.settings, self.clock, offline=offline)

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

    def exclusive_access(self) -> AbstractContextManager[None]:
        """Keep other processes from opening the store. Raises `StoreBusy` if one has it open."""
        return exclusive_access(self.settings.db_path)
