"""`everthread config`: which settings are in force, and where they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, home_option, json_option, pass_cli
from everthread.cli.exit_codes import CONFIGURATION
from everthread.cli.output import print_json, table
from everthread.cli.shell_complete import complete_settings
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.config.settings import Places

_REJECTED = ".rejected"


@click.group()
def config() -> None:
    """Look at the settings and change them.

    \b
    Examples:
      everthread config show
      everthread config get model
      everthread config set limits.turn_s 120
      everthread config edit
    """


@config.command()
@json_option
@home_option
@pass_cli
def path(cli: CliContext, as_json: bool) -> None:
    """Print where config.toml is, or would be.

    \b
    Examples:
      everthread config path
      everthread config path --json
    """
    from msgspec.structs import asdict

    from everthread.config.settings import places

    found = places(cli.home)
    if as_json:
        print_json({name: str(place) for name, place in asdict(found).items()})
    else:
        click.echo(str(found.config))


@config.command("show")
@json_option
@home_option
@pass_cli
def show_settings(cli: CliContext, as_json: bool) -> None:
    """Show the settings in force. Secrets are not shown, only whether they are set.

    \b
    Examples:
      everthread config show
      everthread config show --json | jq .limits
    """
    from everthread.cli.settings_view import as_json as shown
    from everthread.cli.settings_view import rows

    settings = shown(cli.settings)
    if as_json:
        print_json(settings)
    else:
        click.echo(table(("SETTING", "VALUE"), list(rows(settings))))


@config.command()
@click.argument("key", shell_complete=complete_settings)
@json_option
@home_option
@pass_cli
def get(cli: CliContext, key: str, as_json: bool) -> None:
    """Print the setting KEY, or all of a table, and where it comes from.

    \b
    Examples:
      everthread config get model
      everthread config get limits
      everthread config get limits.turn_s --json | jq .value
    """
    from everthread.cli.settings_view import as_json as shown
    from everthread.cli.settings_view import find_setting, format_value, leaves
    from everthread.config.edit import keys_of
    from everthread.config.origins import origin

    settings = cli.settings
    keys = keys_of(key)
    value = find_setting(shown(settings), keys)
    if as_json:
        print_json({"key": key, "value": value, "from": origin(settings, keys)})
        return
    all_of_it = leaves({keys[-1]: value}, keys[:-1])
    lines = [(".".join(way), format_value(one), origin(settings, way)) for way, one in all_of_it]
    click.echo(table(("SETTING", "VALUE", "FROM"), lines))


# Numbers may begin with a minus.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key", shell_complete=complete_settings)
@click.argument("value")
@json_option
@home_option
@pass_cli
def set_setting(cli: CliContext, key: str, value: str, as_json: bool) -> None:
    """Set KEY to VALUE in config.toml. Everything else in the file stays as it is, remarks too.

    VALUE is written as in TOML; quotes around a text may be left out, and several texts may stand between commas.
    A secret is refused: it belongs into .env.

    \b
    Examples:
      everthread config set model ollama/qwen3
      everthread config set limits.turn_s 120
      everthread config set fallback_models openai/some-model,ollama/qwen3
      everthread config set 'prices."openai/some-model".input' 2.5
    """
    from everthread.config.edit import keys_of, set_value
    from everthread.config.origins import origin
    from everthread.config.settings import places

    for argument in (key, value):
        if argument.startswith("-") and not argument[1:2].isdigit():
            raise click.NoSuchOption(argument)
    where = places(cli.home)
    now = set_value(where, key, value)
    settings = cli.settings
    source = origin(settings, keys_of(key))
    if as_json:
        print_json({"key": key, "value": now, "file": str(where.config), "in_force": str(where.config) in source})
        return
    click.echo(f"{one_line(key)} is set in {where.config}.")
    if str(where.config) not in source:
        click.echo(f"It is not in force: {source} goes before it.", err=True)


@config.command()
@json_option
@home_option
@pass_cli
def edit(cli: CliContext, as_json: bool) -> None:
    """Edit config.toml in $VISUAL or $EDITOR. It is checked before it is put into place.

    What can't be used is kept beside it, as config.toml.rejected, and config.toml stays as it was. The next time
    you are asked whether to go on with that.

    \b
    Examples:
      everthread config edit
      EDITOR=nano everthread config edit
    """
    from everthread.config.settings import places

    where = places(cli.home)
    changed = _edited(where)
    if as_json:
        print_json({"file": str(where.config), "changed": changed})
    else:
        click.echo(f"{where.config} {'is changed' if changed else 'is as it was'}.")


@config.command()
@json_option
@home_option
@pass_cli
def validate(cli: CliContext, as_json: bool) -> None:
    """Check config.toml, .env and mcp.json; the exit code is 78 if there is something wrong.

    \b
    Examples:
      everthread config validate
      everthread config validate --json
    """
    found = _problems(cli)
    if found:
        if as_json:
            print_json({"valid": False, "error": found[0], "problems": found, "warnings": []})
        for problem in found:
            click.echo(f"everthread: {problem}", err=True)
        raise click.exceptions.Exit(CONFIGURATION)
    settings = cli.settings
    if as_json:
        print_json({"valid": True, "error": None, "problems": [], "warnings": list(settings.warnings)})
        return
    for warning in settings.warnings:
        click.echo(f"Warning: {one_line(warning)}")
    there = settings.config_path.exists()
    click.echo(f"{settings.config_path}: {'no mistakes' if there else 'not there, and not needed'}.")


def _problems(cli: CliContext) -> list[str]:
    """All that is wrong with the files; else the first thing that is wrong with what they come to."""
    from everthread.config.settings import default_model, places
    from everthread.config.validate import problems
    from everthread.domain.errors import BadConfig

    found = problems(places(cli.home))
    if not found:
        try:
            default_model(cli.settings)
        except BadConfig as error:
            found = [str(error)]
    return [one_line(problem) for problem in found]


def _edited(where: Places) -> bool:
    """Have a copy of the file edited until it can be used, or nobody wants to go on; whether it was changed.

    What was rejected once is never written over: it is gone on with, or stays beside the next.
    """
    import sys

    from everthread.cli.editor import EditFailed
    from everthread.cli.editor import edit as have_edited
    from everthread.config.edit import replace_config
    from everthread.config.tables import read_text
    from everthread.config.validate import problems
    from everthread.domain.errors import BadConfig

    before = read_text(where.config) or ""
    draft, start = _draft(where, before)
    while True:
        try:
            have_edited(draft)
        except EditFailed as error:
            if read_text(draft) == start == before:
                draft.unlink()
                raise
            raise EditFailed(f"{error}; {where.config} stays as it was, what was saved is in {draft}") from error
        text = read_text(draft) or ""
        found = problems(where, draft=text) if text != before else []
        if not found:
            if (read_text(where.config) or "") != before:
                raise EditFailed(f"{where.config} was changed meanwhile, and stays so; what you wrote is in {draft}")
            if text != before:
                replace_config(where, text)
            draft.unlink()
            return text != before
        for problem in found:
            click.echo(one_line(problem.replace(str(where.config), str(draft))), err=True)
        if not sys.stdin.isatty() or not click.confirm("Open it again?", default=True, err=True):
            raise BadConfig(f"{where.config} stays as it was; what you wrote is in {draft}")


def _draft(where: Places, before: str) -> tuple[Path, str]:
    """The file to edit, and what it starts with: what was rejected before, if that is wanted."""
    import sys

    from everthread.cli.editor import free_name
    from everthread.config.edit import replace_file
    from everthread.config.tables import read_text

    rejected = where.config.with_name(where.config.name + _REJECTED)
    question = f"Go on with what was rejected before, {rejected}?"
    if rejected.exists() and sys.stdin.isatty() and click.confirm(question, default=True, err=True):
        return rejected, read_text(rejected) or ""
    draft = free_name(where.config, _REJECTED)
    replace_file(draft, before)
    return draft, before
