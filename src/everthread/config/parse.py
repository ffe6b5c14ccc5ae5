"""Read the files `config.toml` and `mcp.json` by the declarations of `schema`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_origin

from msgspec import Struct
from msgspec.structs import asdict, replace

from everthread.config.access import grants_of
from everthread.config.checks import check_text, check_url
from everthread.config.declaration import (
    Declaration,
    PriceTable,
    ResetPolicyTable,
    ResetTable,
    declaration,
    declarations,
    is_table,
    keys_of,
)
from everthread.config.environment import ollama_url
from everthread.config.provider_settings import check_provider_names, provider_table_names, read_provider_tables
from everthread.config.schema import (
    BASE_URLS,
    AccessGrants,
    AccessSettings,
    GatewaySettings,
    HttpSettings,
    McpServer,
    MemorySettings,
    PlatformAccount,
    ProviderSettings,
    Settings,
    built_in_providers,
)
from everthread.config.secrets import refuse_secrets
from everthread.config.tables import Table, parse_json, parse_toml, read_text, suggest
from everthread.domain.errors import BadConfig
from everthread.domain.model import ChatType
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.domain.spend import Price

MCP_SERVERS = "mcpServers"
SOCKET_BYTES_MAX = 107
"""The longest path of a Unix socket on Linux."""
_ENTRIES_MAX = 1000
_LIMITED = (ProviderSettings, PriceTable, McpServer, ResetPolicyTable, AccessGrants)
"""Entries of which a file may have at most `_ENTRIES_MAX`."""


def read_files(home: Path, config: Path, env: Path, mcp: Path, *, draft: str | None = None) -> dict[str, Any]:
    """Return the fields of `Settings` that the files set. A draft is read in place of the text of `config.toml`.

    Raises `BadConfig` for the first mistake.
    """
    values: dict[str, Any] = {}
    text = read_text(config) if draft is None else draft
    if text is not None:
        values = read_config(parse_toml(config, text), home, env)
    text = read_text(mcp)
    if text is not None:
        top = parse_json(mcp, text)
        servers = read_mcp(top, home, env)
        known = values.get("mcp_servers", {})
        for name in servers:
            if name in known:
                raise top.bad((MCP_SERVERS, name), f"is in {config} too; keep one of them")
        values["mcp_servers"] = {**known, **servers}
    return values


def read_config(top: Table, home: Path, env: Path) -> dict[str, Any]:
    """Return the fields of `Settings` that `config.toml` sets."""
    # First, so that no other complaint can quote a secret.
    refuse_secrets(top, env)
    _refuse_unknown(top)
    values = _Reader(home).values(top, Settings)
    if "memory" in top:
        values["memory_providers"] = read_provider_tables(top.table("memory"), keys_of(MemorySettings))
    if "providers" in top:
        values["providers"] = {**built_in_providers(), **values["providers"]}
    _refuse_unknown_providers(top, values)
    return values


def read_mcp(top: Table, home: Path, env: Path) -> dict[str, McpServer]:
    """Return the servers that `mcp.json` sets."""
    refuse_secrets(top, env)
    top.allow(MCP_SERVERS)
    return _Reader(home).values(top, Settings).get("mcp_servers", {})


def check_setting(name: str, text: str, providers: Collection[str]) -> str:
    """Check a text for a setting at the top level; return the problem, or an empty text."""
    setting = declaration(Settings, name).setting
    if setting.empty and not text:
        return ""
    return setting.check(text) or (_provider_problem(text, providers) if "model" in name else "")


def move_provider(providers: Mapping[str, ProviderSettings], variable: str, value: str) -> dict[str, ProviderSettings]:
    """Replace the URL of a provider by the one of an environment variable."""
    name = BASE_URLS[variable]
    url = ollama_url(value) if variable == "OLLAMA_HOST" else value.strip()
    if problem := check_url(url):
        raise BadConfig(f"{variable}: {problem}")
    return {**providers, name: replace(providers[name], base_url=url.rstrip("/"))}


def _refuse_unknown(top: Table) -> None:
    """Refuse an unknown key at the top level. It may be a setting whose table was forgotten."""
    known = keys_of(Settings)
    for key in top:
        if key not in known:
            for each in declarations(Settings):
                kind = each.setting.table or each.type
                if is_table(kind) and key in keys_of(kind):
                    raise top.error(key, f"Unknown setting {key!r}. Did you mean {each.key}.{key}?")
    top.allow(*known)


def _refuse_unknown_providers(top: Table, values: Mapping[str, Any]) -> None:
    providers = values.get("providers") or built_in_providers()
    models = [((name,), values.get(name, "")) for name in ("model", "auxiliary_model")]
    models += [(("fallback_models", n), model) for n, model in enumerate(values.get("fallback_models", ()))]
    models += [(("prices", model), model) for model in values.get("prices", ())]
    models += _granted_models(values.get("access", AccessSettings()))
    for keys, model in models:
        if model and (problem := _provider_problem(model, providers)):
            raise top.bad(keys, problem)


def _granted_models(access: AccessSettings) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the models that are granted, each with its keys."""
    return [
        (("access", *keys, "models", n), model)
        for keys, grants in grants_of(access).items()
        for n, model in enumerate(grants.models)
    ]


def _provider_problem(model: str, providers: Collection[str]) -> str:
    provider = model.partition("/")[0]
    return "" if provider in providers else f"unknown provider {provider!r}. {suggest(provider, providers)}"


# --- One table -------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads tables by their declarations. Relative paths start at the home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def read(self, table: Table, kind: type[Struct], base: Struct | None = None) -> Any:
        """Return a table as a value of its kind; keys that are not set are as in the base."""
        table.allow(*keys_of(kind), *_other_keys(kind, table))
        values = self.values(table, kind)
        required = kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
        for name in required if base is None else ():
            if name not in values:
                raise table.bad((), _missing(declaration(kind, name)))
        value = replace(base, **values) if base is not None else kind(**values)
        return _FINISH[kind](table, value) if kind in _FINISH else value

    def values(self, table: Table, kind: type[Struct]) -> dict[str, Any]:
        """Return the fields that a table sets."""
        keys = keys_of(kind)
        return {keys[key]: self._value(table, declaration(kind, keys[key])) for key in keys if key in table}

    def _value(self, table: Table, declared: Declaration) -> Any:
        key, kind, setting = declared.key, declared.type, declared.setting
        if kind is bool:
            return table.boolean(key)
        if kind is int:
            return table.integer(key, setting.low, setting.high)
        if kind is float:
            return table.number(key, setting.low, setting.high)
        if kind is Path:
            text = table.text(key, check_text)
            return self._path(table, key, text) if text else None
        if declared.choices:
            return table.text(key, lambda text: "" if text in declared.choices else one_of(declared.choices))
        if kind is str:
            return table.text(key, lambda text: "" if setting.empty and not text else setting.check(text))
        if get_origin(kind) is tuple:
            texts = table.texts(key, setting.check)
            return tuple(self._path(table, key, text) for text in texts) if declared.entry is Path else texts
        if get_origin(kind) is Mapping:
            return self._entries(table.table(key), declared)
        return self.read(table.table(key), setting.table or kind)

    def _entries(self, table: Table, declared: Declaration) -> dict[str, Any]:
        """Return the entries of a table that the user names entries of."""
        entry, check = declared.entry, declared.setting.check
        names = table.names(declared.setting.names)
        if entry in _LIMITED and len(names) > _ENTRIES_MAX:
            raise table.bad(names[_ENTRIES_MAX], f"more than {_ENTRIES_MAX} entries; remove some")
        if entry is str:
            return {name: table.text(name, check) for name in names}
        if get_origin(entry) is tuple:
            return {name: table.texts(name, check) for name in names}
        base = _BASES.get(entry)
        return {name: self.read(table.table(name), entry, base(name) if base else None) for name in names}

    def _path(self, table: Table, key: str, text: str) -> Path:
        try:
            return self.home / Path(text).expanduser()
        except RuntimeError as error:
            raise table.bad(key, "begins with ~ and an unknown user; write the whole path") from error


_BASES: Mapping[type[Struct], Callable[[str], Struct]] = {
    ProviderSettings: lambda name: built_in_providers().get(name, ProviderSettings()),
    PlatformAccount: PlatformAccount,
}
"""The values of an entry before its table is read, by its name."""


def _missing(declared: Declaration) -> str:
    name, values = declared.key, [f'"{choice}"' for choice in declared.choices] or ["..."]
    add = " or ".join(f"{name} = {value}" for value in values)
    return f"{name!r} is missing; add {add} ({declared.setting.help})"


def one_of(choices: Collection[str]) -> str:
    *others, last = choices
    return f"must be {', '.join(others)} or {last}"


def _other_keys(kind: type[Struct], table: Table) -> Collection[str]:
    """Return keys that are allowed in a table but are no fields of it."""
    if kind is McpServer:
        # Other programs write `type` beside `command` and `url`.
        return ("type",)
    return provider_table_names(table, keys_of(MemorySettings)) if kind is MemorySettings else ()


# --- Rules that concern several keys of a table ----------------------------------------------------------------------


def _finish_provider(table: Table, provider: ProviderSettings) -> ProviderSettings:
    if provider.kind != "local" and not provider.base_url:
        raise table.bad((), 'has no URL; add base_url = "https://..."')
    return replace(provider, base_url=provider.base_url.rstrip("/"))


def _finish_account(table: Table, account: PlatformAccount) -> PlatformAccount:
    if account.allow_all and account.allow:
        raise table.bad("allow_all", "admits everybody, so `allow` has no effect; keep one of them")
    return replace(account, base_url=account.base_url.rstrip("/"))


def _finish_server(table: Table, server: McpServer) -> McpServer:
    if bool(server.command) == bool(server.url):
        both = "has both a command and a url; keep one"
        raise table.bad((), both if server.command else "has neither a command nor a url; add one")
    beside = f"beside a {'command' if server.command else 'url'}"
    types = ("stdio",) if server.command else ("http", "streamable-http", "sse")
    if "type" in table and table.text("type", check_text) not in types:
        raise table.bad("type", f"must be {' or '.join(types)} {beside}")
    for key in ("headers",) if server.command else ("args", "env", "cwd"):
        if key in table:
            raise table.bad(key, f"has no effect {beside}; remove it")
    return server


def _finish_gateway(table: Table, gateway: GatewaySettings) -> GatewaySettings:
    owners: dict[str, str] = {}
    for owner, accounts in gateway.links.items():
        for account in accounts:
            if (other := owners.setdefault(account, owner)) != owner:
                raise table.bad(("links", owner), f"{account} belongs to {other}; an account has one owner")
    return gateway


def _finish_http(table: Table, http: HttpSettings) -> HttpSettings:
    if http.socket is None:
        if http.auth == "none":
            raise table.bad("auth", 'admits everybody who can connect; "none" needs socket = "PATH" beside it')
        return http
    for key in ("host", "port"):
        if key in table:
            raise table.bad(key, "has no effect beside a socket; remove it")
    if len(os.fsencode(http.socket)) > SOCKET_BYTES_MAX:
        raise table.bad("socket", f"is longer than {SOCKET_BYTES_MAX} bytes; choose a shorter path")
    return http


def _finish_memory(table: Table, memory: MemorySettings) -> MemorySettings:
    check_provider_names(table, memory.providers)
    return memory


def _finish_policy(table: Table, policy: ResetPolicyTable) -> ResetPolicy:
    idle, daily = policy.mode in ("idle", "both"), policy.mode in ("daily", "both")
    for key, used, mode in (("idle_minutes", idle, "idle"), ("hour", daily, "daily"), ("zone", daily, "daily")):
        if key in table and not used:
            raise table.bad(key, f'has no effect with mode = "{policy.mode}"; set mode to "{mode}" or "both"')
    return ResetPolicy(policy.idle_minutes * 60 if idle else None, policy.hour if daily else None, policy.zone)


def _finish_reset(table: Table, reset: ResetTable) -> ResetPolicies:
    # The inner tables were read before, so their values are policies already.
    policies: Any = reset
    chat_types = {ChatType(name): policy for name, policy in policies.chat_types.items()}
    return ResetPolicies(_finish_policy(table, reset), policies.platforms, chat_types)


_FINISH: Mapping[type[Struct], Callable[[Table, Any], Any]] = {
    ProviderSettings: _finish_provider,
    PlatformAccount: _finish_account,
    McpServer: _finish_server,
    GatewaySettings: _finish_gateway,
    HttpSettings: _finish_http,
    MemorySettings: _finish_memory,
    PriceTable: lambda _, prices: Price(**asdict(prices)),
    ResetPolicyTable: _finish_policy,
    ResetTable: _finish_reset,
}
"""Checks and conversions after a table was read."""
