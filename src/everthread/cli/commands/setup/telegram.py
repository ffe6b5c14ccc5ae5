"""`everthread setup telegram`: set up a Telegram bot. Its token is tested before anything is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.commands.setup.secrets import with_secrets, write_settings
from everthread.cli.context import CliContext, common_options
from everthread.cli.output import Result, render
from everthread.domain.errors import BadInput

if TYPE_CHECKING:
    from everthread.config.schema import Settings

_PLATFORM = "telegram"
_VARIABLE = "TELEGRAM_BOT_TOKEN"


@click.command()
@click.option("--token-env", metavar="NAME", default="", help="Environment variable with the token.")
@click.option("--allow", metavar="USER", multiple=True, help="Numeric id of a user who may write; may be repeated.")
@click.option("--offline", is_flag=True, help="Do not test the token.")
@common_options
def telegram(cli: CliContext, token_env: str, allow: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Set up a Telegram bot.

    Create a bot with @BotFather on Telegram (/newbot) to get its token. The token is entered hidden, tested, and
    written to .env, readable for your user only. The table [platforms.telegram] is added to config.toml. Needs an
    extra: python -m pip install 'everthread[telegram]'

    \b
    Examples:
      everthread setup telegram
      everthread setup telegram --token-env TELEGRAM_BOT_TOKEN --allow 12345678
      everthread setup telegram --token-env MY_TOKEN --offline --json
    """
    if not token_env and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("No terminal to ask questions. Give --token-env NAME, with the token in that variable")
    render(Result(_set_up(cli, token_env, allow, offline=offline), ""), as_json)


def _set_up(cli: CliContext, token_env: str, allow: tuple[str, ...], *, offline: bool) -> dict[str, Any]:
    """Test and write the token; return the result for --json. Without `token_env`, ask for the token."""
    from everthread.cli.commands.setup.model import ask_key

    settings = cli.settings
    known = settings.platforms.get(_PLATFORM)
    variable = token_env or (known.token_env if known is not None else "") or _VARIABLE
    typed = "" if token_env else ask_key(settings, variable, "Token")
    if not typed and not settings.secret(variable):
        raise BadInput(f"{variable[:100]} is not set; set it in the environment or in {settings.env_path}")
    secrets = {variable: typed} if typed else {}
    bot_name = ""
    if not offline:
        click.echo("Testing the token ...", err=True)
        updated = _updated_settings(settings, variable, secrets)
        bot_name = cli.run(cli.unopened_runtime(updated).reach_platform(_PLATFORM))
    where = cli.home_paths
    values: dict[str, Any] = {f"platforms.{_PLATFORM}.token_env": variable, f"platforms.{_PLATFORM}.enabled": True}
    if allow:
        values[f"platforms.{_PLATFORM}.allow"] = list(allow)
    write_settings(where, values, secrets)
    if secrets:
        click.echo(f"The token is in {where.env} as {variable}, readable for your user only.", err=True)
    tested = f"The bot is {bot_name}." if bot_name else "Not tested."
    click.echo(f"{tested} The table [platforms.{_PLATFORM}] is in {where.config}.", err=True)
    if not allow and (known is None or not (known.allow or known.allow_all or known.admins)):
        click.echo("Write to the bot, and approve the code it sends: everthread pairing approve CODE", err=True)
    click.echo("Start it with everthread gateway run.", err=True)
    return {
        "platform": _PLATFORM,
        "bot": bot_name or None,
        "config": str(where.config),
        "token_env": variable,
        "token_written": bool(typed),
        "tried": not offline,
    }


def _updated_settings(settings: Settings, variable: str, secrets: dict[str, str]) -> Settings:
    """Return the settings with the bot added."""
    from msgspec.structs import replace

    from everthread.config.schema import PlatformAccount

    known = settings.platforms.get(_PLATFORM) or PlatformAccount(_PLATFORM)
    platforms = {**settings.platforms, _PLATFORM: replace(known, token_env=variable, enabled=True)}
    return replace(with_secrets(settings, secrets), platforms=platforms)
