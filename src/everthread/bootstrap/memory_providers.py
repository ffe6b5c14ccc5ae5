"""Create the configured memory providers. The class of each is imported on use.

Providers of other packages register in the entry-point group `everthread.memory_providers`: the entry's name is the
provider's name, and its object is called without arguments. Its optional `settings_fields` declare the keys of
`[memory.NAME]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, cast

from msgspec import Struct

from everthread.config.environment import hermes_home
from everthread.config.provider_settings import (
    BUILTIN,
    BUNDLED_PROVIDERS,
    GROUP,
    HERMES,
    Field,
    Value,
    arguments,
    check_provider_name,
    read_provider_table,
    table_name,
)
from everthread.config.schema import Settings
from everthread.config.tables import suggest
from everthread.domain.errors import BadConfig
from everthread.memory.legacy_providers import as_provider
from everthread.ports.memory import Capability, MemoryProvider

_REMEDY = "reinstall it, or remove it"


class ConfiguredProvider(Struct, frozen=True):
    """A provider and the arguments of its `initialize`."""

    provider: MemoryProvider
    settings: dict[str, Any]

    # The default repr would show the settings, which may contain an API key.
    __repr__ = object.__repr__


class Adapter(Struct, frozen=True):
    """Location and requirements of a provider that comes with this program."""

    module: str
    name: str
    """Name of the class, which takes no arguments."""
    extra: str = ""
    needs: tuple[str, ...] = ()
    """Modules that the extra installs. `initialize` imports them, not the adapter's module."""


_ADAPTERS: dict[str, Adapter] = {
    "hindsight": Adapter("everthread.adapters.memory.hindsight.provider", "Hindsight", "hindsight"),
    HERMES: Adapter("everthread.adapters.memory.hermes_bridge.provider", "HermesBridge"),
    "honcho": Adapter("everthread.adapters.memory.honcho.provider", "Honcho", "honcho"),
    "openviking": Adapter("everthread.adapters.memory.openviking.provider", "OpenViking", "openviking"),
    "mem0": Adapter("everthread.adapters.memory.mem0.provider", "Mem0", "mem0"),
    "supermemory": Adapter("everthread.adapters.memory.supermemory.provider", "Supermemory", "supermemory"),
}
"""The settings of each are declared in `config/provider_settings.py`."""


def make_providers(settings: Settings) -> dict[str, ConfiguredProvider]:
    """Create the providers in the settings, except the built-in one. Raises `BadConfig` if one can't be created."""
    wanted = [name for name in settings.memory.providers if name != BUILTIN]
    for name in wanted:
        if table_name(name) not in BUNDLED_PROVIDERS:
            read_provider_table(settings.config_path, name, provider_fields(name))
    return {name: make_provider(name, settings) for name in wanted}


def make_provider(name: str, settings: Settings) -> ConfiguredProvider:
    """Create one provider with its settings, even if it is not among the configured ones."""
    fields, written = provider_fields(name), settings.memory_providers.get(table_name(name), {})
    values: dict[str, Value] = arguments(table_name(name), fields, written, settings.secret, settings.env_path)
    provider = _create(name)
    if provider.name != name:
        raise BadConfig(f"the memory provider {name!r} has the name {provider.name!r}; use one name for both")
    folder = settings.home / "providers" / name.replace(":", "-")
    if table_name(name) == HERMES:
        values = {**hermes_defaults(settings), "owner": settings.owner, **values}
    return ConfiguredProvider(provider, {**values, "folder": folder, "profile": settings.profile})


def hermes_defaults(settings: Settings) -> dict[str, Value]:
    """Return the default interpreter for Hermes Agent plugins, and the default home of Hermes Agent's settings."""
    return {"python": str(settings.hermes_path / "bin" / "python"), "template": str(hermes_home())}


def known_providers() -> dict[str, str]:
    """Return the available providers besides the built-in one, with descriptions."""
    return {
        **{name: entry.description for name, entry in BUNDLED_PROVIDERS.items()},
        **{name: entry.value for name, entry in _installed_plugins()},
    }


def provider_fields(name: str) -> tuple[Field, ...]:
    """Return the settings of a provider. Raises `BadConfig` for an unknown provider."""
    if table_name(name) in BUNDLED_PROVIDERS:
        return BUNDLED_PROVIDERS[table_name(name)].fields
    fields: object = getattr(_find_class(name), "settings_fields", ())
    if not isinstance(fields, Sequence) or not all(
        isinstance(each, Field) for each in cast("Sequence[object]", fields)
    ):
        raise BadConfig(f"memory.providers: {name}: its settings_fields are invalid; {_REMEDY}")
    return tuple(cast("Sequence[Field]", fields))


def _create(name: str) -> MemoryProvider:
    """Create a provider. Any error of a provider from another package becomes a `BadConfig` with a remedy."""
    make = _find_class(name)
    try:
        provider = as_provider(make())
    except Exception as error:
        raise BadConfig(f"memory.providers: {name} can't be created: {error!r}; {_REMEDY}") from error
    if not isinstance(cast(object, provider.capabilities), Capability):
        raise BadConfig(f"memory.providers: {name}: its capabilities are invalid; {_REMEDY}")
    return provider


def _find_class(name: str) -> Callable[[], object]:
    adapter = _ADAPTERS.get(table_name(name))
    if adapter is not None:
        _check_installed(name, adapter)
        if table_name(name) == HERMES and (problem := check_provider_name(name)):
            raise BadConfig(f"{name[:100]!r} {problem}")
        kind: Any = getattr(import_module(adapter.module), adapter.name)
        return partial(kind, name.partition(":")[2]) if table_name(name) == HERMES else kind
    others: Mapping[str, EntryPoint] = dict(_installed_plugins())
    if name not in others:
        hint = suggest(name, [BUILTIN, *known_providers()])
        raise BadConfig(f"memory.providers: unknown memory provider {name!r}. {hint}")
    try:
        return cast("Callable[[], object]", others[name].load())
    # An imported module may call `sys.exit`.
    except (Exception, SystemExit) as error:
        raise BadConfig(
            f"memory.providers: {name}: {others[name].value} can't be loaded: {error!r}; {_REMEDY}"
        ) from error


def _check_installed(name: str, adapter: Adapter) -> None:
    missing = [module for module in adapter.needs if find_spec(module) is None]
    if missing:
        raise BadConfig(
            f"memory.providers: {name} needs {', '.join(missing)}, which is not installed; "
            f"run: pip install 'everthread[{adapter.extra}]'"
        )


def _installed_plugins() -> Sequence[tuple[str, EntryPoint]]:
    return [
        (entry.name, entry) for entry in entry_points(group=GROUP) if entry.name not in (BUILTIN, *BUNDLED_PROVIDERS)
    ]
