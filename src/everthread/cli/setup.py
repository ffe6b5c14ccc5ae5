"""`everthread setup`: what has to be fetched once."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.cli.local_files import Progress

_LABEL = "Downloading the local model"
_STEP_PERCENT = 25


@click.group()
def setup() -> None:
    """Fetch what a feature needs.

    \b
    Example:
      everthread setup local
    """


@setup.command()
@click.option("--if-needed", is_flag=True, help="Do nothing if a key or a model is configured; then say nothing.")
@json_option
@home_option
@pass_invocation
def local(invocation: Invocation, if_needed: bool, as_json: bool) -> None:
    """Fetch the local model, SmolLM2-135M, into the home: a chat without a key, on this machine.

    About 130 MB are downloaded, and 210 MB kept, in models/local under the home. If the model is there already, nothing
    is done. To be rid of it, remove that folder.

    \b
    Examples:
      everthread setup local
      everthread setup local --json
      everthread --home /srv/agent setup local
    """
    from everthread import config
    from everthread.cli.local_files import install

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
    from everthread.cli.local_files import megabytes

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
