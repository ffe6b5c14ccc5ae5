"""`everthread config`: show, change and check the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.exit_codes import CONFIGURATION
from everthread.cli.output import Result, print_json, render, table
from everthread.cli.shell_complete import complete_settings
from everthread.domain.errors import BadConfig
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from everthread.config.settings import HomePaths

_REJECTED = ".rejected"


@click.group()
def config() -> None:
    """Show, change and check the settings.

    \b
    Examples:
      everthread config show
      everthread config get model
      everthread config set limits.turn_s 120
      everthread config edit
    """


@config.command()
@common_options
def path(cli: CliContext, as_json: bool) -> None:
    """Print the path of config.toml, which need not exist.

    \b
    Examples:
      everthread config path
      everthread config path --json
    """
    from msgspec.structs import asdict

    found = cli.home_paths
    render(Result({name: str(file) for name, file in asdict(found).items()}, str(found.config)), as_json)


@config.command("show")
@common_options
def show_settings(cli: CliContext, as_json: bool) -> None:
    """Show all settings in effect. Secrets are not shown, only whether they are set.

    \b
    Examples:
      everthread config show
      everthread config show --json | jq .limits
    """
    from everthread.cli.settings_view import as_json as shown
    from everthread.cli.settings_view import rows

    settings = shown(cli.settings)
    render(Result(settings, lambda: table(("SETTING", "VALUE"), list(rows(settings)))), as_json)


@config.command()
@click.argument("key", shell_complete=complete_settings)
@common_options
def get(cli: CliContext, key: str, as_json: bool) -> None:
    """Show the setting KEY, or all settings of a table, and their origin.

    \b
    Examples:
      everthread config get model
      everthread config get limits
      everthread config get limits.turn_s --json | jq .value
    """
    from everthread.cli.settings_view import as_json as shown
    from everthread.cli.settings_view import find_setting, format_value, leaves
    from everthread.config.edit import parse_key
    from everthread.config.origins import origin

    settings = cli.settings
    keys = parse_key(key)
    value = find_setting(shown(settings), keys)
    all_leaves = leaves({keys[-1]: value}, keys[:-1])
    leaf_rows = [(".".join(path), format_value(leaf), origin(settings, path)) for path, leaf in all_leaves]
    data = {"key": key, "value": value, "from": origin(settings, keys)}
    render(Result(data, lambda: table(("SETTING", "VALUE", "FROM"), leaf_rows)), as_json)


# Numbers may begin with a minus.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key", shell_complete=complete_settings)
@click.argument("value")
@common_options
def set_setting(cli: CliContext, key: str, value: str, as_json: bool) -> None:
    """Set KEY to VALUE in config.toml. The rest of the file, with its comments, is not changed.

    VALUE is a TOML value. Quotes around a string may be omitted, and a list of strings may be separated by commas.
    Secrets are rejected; write them to .env.

    \b
    Examples:
      everthread config set model ollama/qwen3
      everthread config set limits.turn_s 120
      everthread config set fallback_models openai/some-model,ollama/qwen3
      everthread config set 'prices."openai/some-model".input' 2.5
    """
    from everthread.config.edit import parse_key, set_value
    from everthread.config.origins import origin

    for argument in (key, value):
        if argument.startswith("-") and not argument[1:2].isdigit():
            raise click.NoSuchOption(argument)
    where = cli.home_paths
    file = where.config
    now = set_value(where, key, value)
    source = origin(cli.settings, parse_key(key))
    in_force = str(file) in source
    data = {"key": key, "value": now, "file": str(file), "in_force": in_force}
    render(Result(data, f"{one_line(key)} is set in {file}."), as_json)
    if not in_force and not as_json:
        click.echo(f"It has no effect: {source} takes precedence.", err=True)


@config.command()
@common_options
def edit(cli: CliContext, as_json: bool) -> None:
    """Edit config.toml in $VISUAL or $EDITOR. The new text is checked before it is saved.

    If it is invalid and you do not correct it, it is kept in config.toml.rejected and config.toml is not changed. The
    next `config edit` offers to continue with it.

    \b
    Examples:
      everthread config edit
      EDITOR=nano everthread config edit
    """

    where = cli.home_paths
    changed = _edit(where)
    text = f"{where.config} {'was changed' if changed else 'was not changed'}."
    render(Result({"file": str(where.config), "changed": changed}, text), as_json)


@config.command()
@common_options
def validate(cli: CliContext, as_json: bool) -> None:
    """Check config.toml, .env and mcp.json. The exit code is 78 if there is a problem.

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
    state = "no problems" if settings.config_path.exists() else "does not exist; defaults are used"
    lines = [*(f"Warning: {one_line(warning)}" for warning in settings.warnings), f"{settings.config_path}: {state}."]
    data = {"valid": True, "error": None, "problems": [], "warnings": list(settings.warnings)}
    render(Result(data, lines), as_json)


def _problems(cli: CliContext) -> list[str]:
    """Return all problems of the files; if there are none, the first problem of the resulting settings."""
    from everthread.config.access import unknown_grants
    from everthread.config.settings import default_model
    from everthread.config.validate import problems

    found = problems(cli.home_paths)
    if not found:
        found = unknown_grants(cli.settings)
        try:
            default_model(cli.settings)
        except BadConfig as error:
            found = [str(error)]
    return [one_line(problem) for problem in found]


def _edit(where: HomePaths) -> bool:
    """Edit a copy of the file until it is valid or the user gives up. Return whether config.toml was changed.

    A rejected text is never overwritten: the user continues with it, or it stays beside the next one.
    """
    import sys

    from everthread.cli.editor import EditFailed
    from everthread.cli.editor import edit as open_editor
    from everthread.config.edit import replace_config
    from everthread.config.tables import read_text
    from everthread.config.validate import problems

    before = read_text(where.config) or ""
    draft, start = _draft(where, before)
    while True:
        try:
            open_editor(draft)
        except EditFailed as error:
            if read_text(draft) == start == before:
                draft.unlink()
                raise
            raise EditFailed(f"{error}; {where.config} was not changed, your text is in {draft}") from error
        text = read_text(draft) or ""
        found = problems(where, draft=text) if text != before else []
        if not found:
            if (read_text(where.config) or "") != before:
                raise EditFailed(f"{where.config} was changed meanwhile by another program; your text is in {draft}")
            if text != before:
                replace_config(where, text)
            draft.unlink()
            return text != before
        for problem in found:
            click.echo(one_line(problem.replace(str(where.config), str(draft))), err=True)
        if not sys.stdin.isatty() or not click.confirm("Open it again?", default=True, err=True):
            raise BadConfig(f"{where.config} was not changed; your text is in {draft}")


def _draft(where: HomePaths, before: str) -> tuple[Path, str]:
    """Return the file to edit and its text: the text rejected before, if the user wants to continue with it."""
    import sys

    from everthread.cli.editor import free_name
    from everthread.config.edit import replace_file
    from everthread.config.tables import read_text

    rejected = where.config.with_name(where.config.name + _REJECTED)
    question = f"Continue with the text rejected before, {rejected}?"
    if rejected.exists() and sys.stdin.isatty() and click.confirm(question, default=True, err=True):
        return rejected, read_text(rejected) or ""
    draft = free_name(where.config, _REJECTED)
    replace_file(draft, before)
    return draft, before
