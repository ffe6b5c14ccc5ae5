"""Set up a bot on a platform. Its token is tested before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext

if TYPE_CHECKING:
    from everthread.config.settings import Settings

VARIABLE = "TELEGRAM_BOT_TOKEN"


def set_up(cli: CliContext, name: str, token_env: str, allow: tuple[str, ...], *, offline: bool) -> dict[str, Any]:
    """Test and write the token; return the result for --json. Without `token_env`, ask for the token."""
    from everthread.cli.commands.setup.model import ask_key
    from everthread.config.edit import set_secret, set_values
    from everthread.config.settings import places
    from everthread.domain.errors import BadInput

    settings = cli.settings
    known = settings.platforms.get(name)
    variable = token_env or (known.token_env if known is not None else "") or VARIABLE
    typed = "" if token_env else ask_key(settings, variable, "Token")
    if not typed and not settings.secret(variable):
        raise BadInput(f"{variable[:100]} is not set; set it in the environment or in {settings.env_path}")
    bot_name = ""
    if not offline:
        click.echo("Testing the token ...", err=True)
        bot_name = cli.run(
            cli.unopened_runtime(_updated_settings(settings, name, variable, typed)).reach_platform(name)
        )
    where = places(cli.home)
    values: dict[str, Any] = {f"platforms.{name}.token_env": variable, f"platforms.{name}.enabled": True}
    if allow:
        values[f"platforms.{name}.allow"] = list(allow)
    set_values(where, values)
    if typed:
        set_secret(where, variable, typed)
        click.echo(f"The token is in {where.env} as {variable}, readable for your user only.", err=True)
    tested = f"The bot is {bot_name}." if bot_name else "Not tested."
    click.echo(f"{tested} The table [platforms.{name}] is in {where.config}.", err=True)
    if not allow and (known is None or not (known.allow or known.allow_all or known.admins)):
        click.echo("Write to the bot, and approve the code it sends: everthread pairing approve CODE", err=True)
    click.echo("Start it with everthread gateway run.", err=True)
    return {
        "platform": name,
        "bot": bot_name or None,
        "config": str(where.config),
        "token_env": variable,
        "token_written": bool(typed),
        "tried": not offline,
    }


def _updated_settings(settings: Settings, name: str, variable: str, typed: str) -> Settings:
    """Return the settings with the bot added."""
    from msgspec.structs import replace

    from everthread.config.settings import PlatformAccount, Variables

    account = replace(settings.platforms.get(name) or PlatformAccount(name), token_env=variable, enabled=True)
    variables = settings.variables
    if typed:
        variables = Variables({**variables.environ, variable: typed}, variables.file)
    return replace(settings, platforms={**settings.platforms, name: account}, variables=variables)
