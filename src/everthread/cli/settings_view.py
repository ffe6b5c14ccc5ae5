"""Settings as they are shown: nothing of a secret but whether it is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from msgspec import Struct

    from everthread.config.settings import McpServer, Provider, Settings
    from everthread.domain.reset_policy import ResetPolicies, ResetPolicy

HIDDEN = "[hidden]"
Keys = tuple[str, ...]


def rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """One row for every value; the empty ones that are deep down are left out."""
    for keys, value in leaves(values):
        if len(keys) == 1 or value not in (None, "", [], {}):
            yield ".".join(keys), cell(value)


def leaves(values: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every value that is no table, or an empty one, with its keys."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(cast("Mapping[str, Any]", value), (*above, name))
        else:
            yield (*above, name), value


def found(settings: Mapping[str, Any], keys: Keys) -> Any:
    """The setting that the keys lead to. Raises `NotFound`, with the nearest one that there is."""
    from everthread.config.tables import dotted, nearest
    from everthread.domain.errors import NotFound

    value: Any = settings
    for place, key in enumerate(keys):
        if not isinstance(value, Mapping) or key not in value:
            near = nearest(key, list(cast("Mapping[str, Any]", value))) if isinstance(value, Mapping) and value else ""
            where = f" in {dotted(keys[:place])}" if place else ""
            raise NotFound(f"there is no setting {key[:60]!r}{where}; {near or 'config show lists them all'}")
        value = cast("Mapping[str, Any]", value)[key]
    return value


def cell(value: Any) -> str:
    match value:
        case None | "" | [] | {}:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case [*items]:
            return ", ".join(map(str, items))
        case _:
            return str(value)


def as_json(settings: Settings) -> dict[str, Any]:
    from msgspec.structs import asdict

    return {
        "home": str(settings.home),
        "config": str(settings.config_path),
        "env": str(settings.env_path),
        "mcp": str(settings.mcp_path),
        "owner": settings.owner,
        "profile": settings.profile,
        "model": settings.model,
        "auxiliary_model": settings.auxiliary_model,
        "fallback_models": list(settings.fallback_models),
        "limits": asdict(settings.limits),
        "delegation": asdict(settings.delegation),
        "memory": _memory(settings),
        "compression": asdict(settings.compression),
        "review": asdict(settings.review),
        "schedule": _plain(settings.schedule),
        "tools": {"allow": list(settings.tools.allow)},
        "terminal": asdict(settings.terminal),
        "reset": _reset(settings.reset),
        "gateway": _plain(settings.gateway),
        "platforms": {name: _plain(account) for name, account in settings.platforms.items()},
        "prices": {model: asdict(price) for model, price in settings.prices.items()},
        "mcpServers": {name: _server(server) for name, server in settings.mcp_servers.items()},
        "providers": {name: _provider(provider, settings) for name, provider in settings.providers.items()},
        "warnings": list(settings.warnings),
    }


def _plain(table: Struct) -> dict[str, Any]:
    """A table in which secrets are the names of variables only."""
    import msgspec

    return msgspec.to_builtins(table, enc_hook=str)


def _memory(settings: Settings) -> dict[str, Any]:
    """As it is written: each provider's settings stand in a table of its name."""
    from msgspec.structs import asdict

    told = {name: dict(table) for name, table in settings.memory_providers.items()}
    return {**asdict(settings.memory), "providers": list(settings.memory.providers), **told}


def _provider(provider: Provider, settings: Settings) -> dict[str, Any]:
    variable = provider.api_key_env
    return {
        "kind": provider.kind,
        "base_url": provider.base_url,
        "api_key_env": variable,
        "api_key_set": settings.secret(variable) is not None if variable else None,
        "headers": _veiled(provider.headers),
        "tools": provider.tools,
        "context_tokens": provider.context_tokens,
    }


def _server(server: McpServer) -> dict[str, Any]:
    return {
        "command": server.command,
        # An argument may be a secret, and nothing in it says so.
        "args": [HIDDEN] * len(server.args),
        "env": _veiled(server.env),
        "cwd": None if server.cwd is None else str(server.cwd),
        "url": server.url,
        "headers": _veiled(server.headers),
        "timeout_s": server.timeout_s,
        "trust": server.trust,
        "disabled": server.disabled,
    }


def _veiled(values: Mapping[str, str]) -> dict[str, str]:
    """Names, and the variables that values are taken from; not what is written out."""
    from everthread.config.secrets import mentioned

    return {
        name: " ".join(f"${{{variable}}}" for variable in mentioned(text)) or HIDDEN for name, text in values.items()
    }


def _reset(policies: ResetPolicies) -> dict[str, Any]:
    return {
        **_policy(policies.default),
        "platforms": {name: _policy(policy) for name, policy in policies.by_platform.items()},
        "chat_types": {str(name): _policy(policy) for name, policy in policies.by_chat_type.items()},
    }


def _policy(policy: ResetPolicy) -> dict[str, Any]:
    modes = {(False, False): "none", (True, False): "idle", (False, True): "daily", (True, True): "both"}
    return {
        "mode": modes[policy.idle_s is not None, policy.daily_hour is not None],
        "idle_minutes": None if policy.idle_s is None else policy.idle_s / 60,
        "hour": policy.daily_hour,
        "zone": None if policy.daily_hour is None else policy.zone,
    }
