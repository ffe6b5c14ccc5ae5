"""The command line. Its modules import click and nothing slower: what a command needs is imported when it runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from everthread.cli.exits import report
from everthread.cli.opened import Invocation, OpenRuntime, home_option

# Each is the command of that name in the module of that name.
_COMMANDS = {
    "boundaries": "Show every change of a conversation.",
    "config": "See and check the settings.",
    "forget": "Forget a session, a person or a fact.",
    "journal": "See and repair what memory providers are told.",
    "sessions": "Look at conversations.",
    "setup": "Fetch what a feature needs.",
}


class _Commands(click.Group):
    """Imports the one command that is asked for; the list of them needs none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return getattr(import_module(f"everthread.cli.{cmd_name}"), cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"everthread {version('everthread')}")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@home_option
def everthread() -> None:
    """An AI agent that never loses the thread.

    Everything is kept in one folder: the one given with --home, else $EVERTHREAD_HOME, else
    $XDG_DATA_HOME/everthread, else ~/.everthread.

    \b
    Examples:
      everthread sessions list
      everthread journal status --json
      everthread --home /srv/agent forget "Trip to Lisbon"
      everthread setup local

    Exit codes: 0 done, 1 not found or refused, 2 wrong usage, 75 try again later, 78 the home or its
    configuration can't be used, 130 interrupted.
    """


def run(open_runtime: OpenRuntime, arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; the exit code. Whatever goes wrong is one line on stderr, never a traceback."""
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        # A title that the terminal can't show must not keep the rest from being shown.
        stdout.reconfigure(errors="backslashreplace")
    try:
        code = everthread.main(arguments, prog_name="everthread", standalone_mode=False, obj=Invocation(open_runtime))
    except SystemExit as end:
        # Click's way out when the reader of a pipe has gone, or to complete a word for a shell.
        code = end.code
    except BaseException as error:  # noqa: BLE001 - the end of the line: told to the user, in words
        code = report(error)
    return code if isinstance(code, int) else 0
