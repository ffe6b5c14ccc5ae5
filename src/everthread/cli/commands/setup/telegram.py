"""Setting up a bot on a platform: its token is tried before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext

if TYPE_CHECKING:
    from everthread.config.settings import Settings

VARIABLE = "TELEGRAM_BOT_TOKEN"


def set_up(
    invocation: CliContext, name: str, token_env: str, allow: tuple[str, ...], *, offline: bool
) -> dict[str, Any]:
    """Raises what went wrong; nothing is written then. Without a variable, the token is asked for."""
    from everthread.config.edit import set_secret, set_values
    from everthread.config.settings import places
    from everthread.domain.errors import BadInput

    settings = invocation.settings
    known = settings.platforms.get(name)
    variable = token_env or (known.token_env if known is not None else "") or VARIABLE
    typed = "" if token_env else _asked(settings, variable)
    if not typed and not settings.secret(variable):
        raise BadInput(f"{variable[:100]} is not set; put it into the environment or into {settings.env_path}")
    called = ""
    if not offline:
        click.echo("Trying the token ...", err=True)
        called = invocation.run(invocation.unopened(_with(settings, name, variable, typed)).reach_platform(name))
    where = places(invocation.home)
    values: dict[str, Any] = {f"platforms.{name}.token_env": variable, f"platforms.{name}.enabled": True}
    if allow:
        values[f"platforms.{name}.allow"] = list(allow)
    set_values(where, values)
    if typed:
        set_secret(where, variable, typed)
        click.echo(f"The token is in {where.env}, as {variable}; only you can read it.", err=True)
    tried = f"It is {called}." if called else "It was not tried."
    click.echo(f"{tried} The table [platforms.{name}] is in {where.config}.", err=True)
    if not allow and (known is None or not (known.allow or known.allow_all or known.admins)):
        click.echo("Write to it, and let yourself in with the code it shows: everthread pairing approve CODE", err=True)
    click.echo("everthread gateway run serves it.", err=True)
    return {
        "platform": name,
        "bot": called or None,
        "config": str(where.config),
        "token_env": variable,
        "token_written": bool(typed),
        "tried": not offline,
    }


def _asked(settings: Settings, variable: str) -> str:
    """A new token; empty to go on with the one that there is."""
    from everthread.cli.commands.setup.model import ask_key

    return ask_key(settings, variable, "Token")


def _with(settings: Settings, name: str, variable: str, typed: str) -> Settings:
    """The settings as they will be."""
    from msgspec.structs import replace

    from everthread.config.settings import PlatformAccount, Variables

    account = replace(settings.platforms.get(name) or PlatformAccount(name), token_env=variable, enabled=True)
    variables = settings.variables
    if typed:
        variables = Variables({**variables.environ, variable: typed}, variables.file)
    return replace(settings, platforms={**settings.platforms, name: account}, variables=variables)
