"""`everthread setup`: choosing a model and a key, and what has to be fetched once."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.commands.setup.memory import setup_memory
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.commands.setup.local_model import Progress

_LABEL = "Downloading the local model"
_STEP_PERCENT = 25


@click.group(invoke_without_command=True)
@click.option("--model", metavar="PROVIDER/MODEL", default="", help="Use this model, and ask nothing.")
@click.option("--key-env", metavar="NAME", default="", help="The variable that has the key.")
@click.option("--non-interactive", is_flag=True, help="Ask nothing: take what is configured, or given here.")
@click.option("--offline", is_flag=True, help="Do not try the model.")
@json_option
@home_option
@click.pass_context
def setup(
    context: click.Context, model: str, key_env: str, non_interactive: bool, offline: bool, as_json: bool
) -> None:
    """Choose a model, its key and, if you like, memories; and try them. Nothing else that is configured is touched.

    A key is typed without being shown, and written into .env, which only you can read; the model goes into config.toml.
    Both are tried first, with one tiny request.

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
            raise click.UsageError(f"{context.invoked_subcommand}: give its options behind it")
        return
    from everthread.cli.commands.setup.model import asked, carried_out, given

    invocation = context.ensure_object(CliContext)
    if model or key_env or non_interactive:
        done = carried_out(invocation, given(invocation, model, key_env), offline=offline)
    elif sys.stdin.isatty() and not as_json:
        done = asked(invocation, offline=offline)
        if click.confirm("Choose other memories, or some more?", default=False):
            context.invoke(setup_memory, names=(), given=(), offline=offline, as_json=False)
    else:
        raise click.UsageError("There is nobody to ask; give --model PROVIDER/MODEL, and --key-env NAME for a key")
    if as_json:
        show.print_json(done)


setup.add_command(setup_memory)


@setup.command()
@click.option("--token-env", metavar="NAME", default="", help="The variable that has the token; nothing is asked then.")
@click.option("--allow", metavar="USER", multiple=True, help="A user who may write, by number; may be repeated.")
@click.option("--offline", is_flag=True, help="Do not try the token.")
@json_option
@home_option
@pass_invocation
def telegram(invocation: CliContext, token_env: str, allow: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Have a bot on Telegram answered: its token, tried and kept.

    Ask @BotFather on Telegram for a bot (/newbot); it gives you the token. It is typed without being shown, tried, and
    written into .env, which only you can read; config.toml gets a table [platforms.telegram]. Needs the extra:
    python -m pip install 'everthread[telegram]'

    \b
    Examples:
      everthread setup telegram
      everthread setup telegram --token-env TELEGRAM_BOT_TOKEN --allow 12345678
      everthread setup telegram --token-env MY_TOKEN --offline --json
    """
    from everthread.cli.commands.setup.telegram import set_up

    if not token_env and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("There is nobody to ask; give --token-env NAME, with the token in that variable")
    done = set_up(invocation, "telegram", token_env, allow, offline=offline)
    if as_json:
        show.print_json(done)


@setup.command()
@click.option("--if-needed", is_flag=True, help="Do nothing if a key or a model is configured; then say nothing.")
@json_option
@home_option
@pass_invocation
def local(invocation: CliContext, if_needed: bool, as_json: bool) -> None:
    """Fetch the local model, SmolLM2-135M, into the home: a chat without a key, on this machine.

    About 130 MB are downloaded, and 210 MB kept, in models/local under the home. If the model is there already, nothing
    is done. To be rid of it, remove that folder.

    \b
    Examples:
      everthread setup local
      everthread setup local --json
      everthread --home /srv/agent setup local
    """
    from everthread.cli.commands.setup.local_model import install
    from everthread.config import settings as config

    settings = invocation.settings
    folder = settings.local_model_path
    if if_needed and not config.wants_local_model(settings):
        changed = False
    else:
        with _shown() as progress:
            changed = install(folder, progress)
    if as_json:
        show.print_json({"model": "local", "folder": str(folder), "installed": folder.is_dir(), "changed": changed})
    elif changed:
        click.echo(f"The local model is in {folder}.")
    elif not if_needed:
        click.echo(f"The local model is in {folder} already.")


@contextmanager
def _shown() -> Generator[Progress]:
    """A way to show how a download gets on, on stderr: a bar on a terminal, else a line now and then."""
    from everthread.cli.commands.setup.local_model import megabytes

    on_a_terminal = sys.stderr.isatty()
    last = -1

    def show_progress(done: int, whole: int) -> None:
        nonlocal last
        percent = 100 * done // whole
        numbers = f"{megabytes(done)} of {megabytes(whole)} MB ({percent} %)"
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
