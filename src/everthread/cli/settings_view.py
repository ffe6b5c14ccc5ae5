"""Settings as `config show` and `config get` print them, without the values of secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from msgspec import Struct

    from everthread.config.schema import ProviderSettings, Settings
    from everthread.domain.reset_policy import ResetPolicies, ResetPolicy

HIDDEN = "[hidden]"
Keys = tuple[str, ...]


def rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return one row for each value; empty values in tables are left out."""
    for keys, value in leaves(values):
        if len(keys) == 1 or value not in (None, "", [], (), {}):
            yield ".".join(keys), format_value(value)


def leaves(values: Mapping[str, Any], above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Iterate over the values that are not tables, and over empty tables, with their keys."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(cast("Mapping[str, Any]", value), (*above, name))
        else:
            yield (*above, name), value


def find_setting(settings: Mapping[str, Any], keys: Keys) -> Any:
    """Return the setting or the table with these keys. Raises `NotFound` with a suggestion."""
    from everthread.config.tables import dotted, unknown_setting
    from everthread.domain.errors import NotFound

    value: Any = settings
    for index, key in enumerate(keys):
        if not isinstance(value, Mapping) or key not in value:
            known = [*cast("Mapping[str, Any]", value)] if isinstance(value, Mapping) else []
            raise NotFound(unknown_setting(keys[: index + 1], known) if known else f"Unknown setting {dotted(keys)!r}.")
        value = cast("Mapping[str, Any]", value)[key]
    return value


def format_value(value: Any) -> str:
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
    """Return all settings as JSON values, by their keys in a file."""
    from everthread.config.declaration import keys_of
    from everthread.config.schema import Settings

    shown: dict[str, Any] = {
        "home": str(settings.home),
        "config": str(settings.config_path),
        "env": str(settings.env_path),
        "mcp": str(settings.mcp_path),
    }
    for key, name in keys_of(Settings).items():
        shown[key] = _plain(getattr(settings, name))
    shown["memory"] |= {name: dict(table) for name, table in settings.memory_providers.items()}
    shown["reset"] = _reset(settings.reset)
    shown["mcpServers"] = {name: _without_secrets(server) for name, server in settings.mcp_servers.items()}
    shown["providers"] = {name: _provider(provider, settings) for name, provider in settings.providers.items()}
    shown["warnings"] = list(settings.warnings)
    return shown


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value, enc_hook=str)


def _without_secrets(table: Struct) -> dict[str, Any]:
    """Return a table without secret values. Variables that a value refers to are shown."""
    from everthread.config.checks import references
    from everthread.config.declaration import declarations

    shown: dict[str, Any] = _plain(table)
    for each in declarations(type(table)):
        if each.setting.secret and isinstance(shown[each.key], dict):
            shown[each.key] = {
                name: " ".join(f"${{{variable}}}" for variable in references(text)) or HIDDEN
                for name, text in shown[each.key].items()
            }
        elif each.setting.secret:
            # Any argument may be a secret, so hide all of them.
            shown[each.key] = [HIDDEN] * len(shown[each.key])
    return shown


def _provider(provider: ProviderSettings, settings: Settings) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in _without_secrets(provider).items():
        shown[key] = value
        if key == "api_key_env":
            shown["api_key_set"] = settings.secret(value) is not None if value else None
    return shown


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
