"""`everthread setup`: choose a model and its key, memory providers, Telegram, and download the local model."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everthread.cli.commands.setup.memory import setup_memory
from everthread.cli.commands.setup.telegram import telegram
from everthread.cli.context import CliContext, common_options, home_option, json_option
from everthread.cli.output import Result, render

if TYPE_CHECKING:
    from everthread.cli.commands.setup.installer import Progress

_LABEL = "Downloading the local model"
_STEP_PERCENT = 25


@click.group(invoke_without_command=True)
@click.option("--model", metavar="PROVIDER/MODEL", default="", help="Use this model, without questions.")
@click.option("--key-env", metavar="NAME", default="", help="Environment variable with the API key.")
@click.option("--non-interactive", is_flag=True, help="Ask no questions: use the options and the current settings.")
@click.option("--offline", is_flag=True, help="Do not test the model.")
@json_option
@home_option
@click.pass_context
def setup(
    context: click.Context, model: str, key_env: str, non_interactive: bool, offline: bool, as_json: bool
) -> None:
    """Set up the model, its API key and memory. Other settings are not changed.

    The key is entered hidden and written to .env, readable for your user only. The model is written to config.toml.
    Both are tested first with one small request.

    \b
    Examples:
      everthread setup
      everthread setup --model ollama/qwen3
      everthread setup --model openai/some-model --key-env OPENAI_API_KEY
      everthread setup local
      everthread setup memory
    """
    if context.invoked_subcommand is not None:
        if model or key_env or non_interactive or offline or as_json:
            raise click.UsageError(f"Give the options of {context.invoked_subcommand} after it")
        return
    from everthread.cli.commands.setup.model import apply_choice, ask, choice_from_options

    cli = context.ensure_object(CliContext)
    if model or key_env or non_interactive:
        done = apply_choice(cli, choice_from_options(cli, model, key_env), offline=offline)
    elif sys.stdin.isatty() and not as_json:
        done = ask(cli, offline=offline)
        if click.confirm("Change the memory providers?", default=False):
            context.invoke(setup_memory, names=(), given=(), offline=offline, as_json=False)
    else:
        raise click.UsageError(
            "No terminal to ask questions. Give --model PROVIDER/MODEL, and --key-env NAME for a key"
        )
    # The text was printed along the way.
    render(Result(done, ""), as_json)


setup.add_command(setup_memory)
setup.add_command(telegram)


@setup.command()
@click.option("--if-needed", is_flag=True, help="Do nothing if a key or a model is configured.")
@common_options
def local(cli: CliContext, if_needed: bool, as_json: bool) -> None:
    """Download the local model, SmolLM2-135M, to chat on this machine without an API key.

    The download has about 130 MB and takes 210 MB on disk, in models/local in the home. Nothing is done if the model
    is installed already. To uninstall it, remove that folder.

    \b
    Examples:
      everthread setup local
      everthread setup local --json
      everthread --home /srv/agent setup local
    """
    from everthread.cli.commands.setup.local_model import install
    from everthread.config import settings as config

    settings = cli.settings
    folder = settings.local_model_path
    if if_needed and not config.wants_local_model(settings):
        changed = False
    else:
        with _download_progress() as progress:
            changed = install(folder, progress)
    text = f"The local model is {'now' if changed else 'already'} in {folder}." if changed or not if_needed else ""
    data = {"model": "local", "folder": str(folder), "installed": folder.is_dir(), "changed": changed}
    render(Result(data, text), as_json)


@contextmanager
def _download_progress() -> Generator[Progress]:
    """Show the progress of a download on stderr: a bar on a terminal, else a line now and then."""
    from everthread.cli.commands.setup.local_model import megabytes

    on_a_terminal = sys.stderr.isatty()
    last = -1

    def show_progress(done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // total
        numbers = f"{megabytes(done)} of {megabytes(total)} MB ({percent} %)"
        if on_a_terminal:
            last = percent
            click.echo(f"\r{_LABEL} [{'#' * (percent // 4):-<25}] {numbers}", nl=False, err=True)
        elif percent // _STEP_PERCENT > last:
            last = percent // _STEP_PERCENT
            click.echo(f"{_LABEL}: {numbers}", err=True)

    try:
        yield show_progress
    finally:
        if on_a_terminal and last >= 0:
            click.echo(err=True)
