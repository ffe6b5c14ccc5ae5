"""`everthread config`: which settings are in force, and where they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.config import McpServer, Provider, Settings
    from everthread.domain.policy import ResetPolicies, ResetPolicy

HIDDEN = "[hidden]"


@click.group()
def config() -> None:
    """Look at the settings.

    \b
    Examples:
      everthread config show
      $EDITOR "$(everthread config path)"
    """


@config.command()
@json_option
@home_option
@pass_invocation
def path(invocation: Invocation, as_json: bool) -> None:
    """Print where config.toml is, or would be.

    \b
    Examples:
      everthread config path
      everthread config path --json
    """
    from dataclasses import asdict

    from everthread.config import places

    found = places(invocation.home)
    if as_json:
        show.print_json({name: str(place) for name, place in asdict(found).items()})
    else:
        click.echo(str(found.config))


@config.command("show")
@json_option
@home_option
@pass_invocation
def show_settings(invocation: Invocation, as_json: bool) -> None:
    """Show the settings in force. Secrets are not shown, only whether they are set.

    \b
    Examples:
      everthread config show
      everthread config show --json | jq .limits
    """
    settings = _as_json(invocation.settings)
    if as_json:
        show.print_json(settings)
    else:
        click.echo(show.table(("SETTING", "VALUE"), list(_rows("", settings))))


@config.command()
@json_option
@home_option
@pass_invocation
def validate(invocation: Invocation, as_json: bool) -> None:
    """Check config.toml, .env and mcp.json; the exit code is 78 if there is something wrong.

    \b
    Examples:
      everthread config validate
      everthread config validate --json
    """
    from everthread.config import default_model
    from everthread.domain.errors import BadConfig

    try:
        settings = invocation.settings
        default_model(settings)
    except BadConfig as error:
        if as_json:
            show.print_json({"valid": False, "error": show.one_line(str(error)), "warnings": []})
        raise
    if as_json:
        show.print_json({"valid": True, "error": None, "warnings": list(settings.warnings)})
        return
    for warning in settings.warnings:
        click.echo(f"Warning: {show.one_line(warning)}")
    there = settings.config_path.exists()
    click.echo(f"{settings.config_path}: {'no mistakes' if there else 'not there, and not needed'}.")


def _rows(above: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """One row for every value; the empty ones that are deep down are left out."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _rows(f"{above}{name}.", cast("Mapping[str, Any]", value))
        elif not above or value not in (None, "", [], {}):
            yield f"{above}{name}", _cell(value)


def _cell(value: Any) -> str:
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


def _as_json(settings: Settings) -> dict[str, Any]:
    from dataclasses import asdict

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
        "memory": asdict(settings.memory),
        "tools": {"allow": list(settings.tools.allow)},
        "reset": _reset(settings.reset),
        "prices": {model: asdict(price) for model, price in settings.prices.items()},
        "mcpServers": {name: _server(server) for name, server in settings.mcp_servers.items()},
        "providers": {name: _provider(provider, settings) for name, provider in settings.providers.items()},
        "warnings": list(settings.warnings),
    }


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
