"""The command line. Its modules import click and nothing slower: what a command needs is imported when it runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from everthread.cli import shell_complete as completing
from everthread.cli.context import CliContext, Glance, OpenRuntime, home_option
from everthread.cli.exit_codes import report


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"everthread {version('everthread')}")
        context.exit()


# Each is the command of that name in the module of that name, and how its own help begins.
_COMMANDS = {
    "backup": "Put conversations, memory, notes and settings into one new FILE.",
    "boundaries": "Show every change of a conversation.",
    "completion": "Print a script that completes everthread's words in a shell.",
    "config": "Look at the settings and change them.",
    "cron": "Have the agent do things at times, by itself.",
    "doctor": "Check that everything is as it should be.",
    "forget": "Forget a session, a person, or a fact.",
    "gateway": "Serve people who write from elsewhere.",
    "import": "Take in what another agent has kept.",
    "journal": "See and repair what memory providers are told.",
    "logs": "Show the last lines of the log that conversations keep.",
    "memory": "Look after the curated notes.",
    "pairing": "Let people in who write from elsewhere.",
    "recall": "Show what memory would recall.",
    "restore": "Bring back from FILE what `everthread backup` has put there.",
    "send": "Send TEXT to the chat ADDRESS",
    "sessions": "Look at conversations, name them, copy them, remove them.",
    "setup": "Choose a model, its key and, if you like, memories; and try them.",
    "skills": "Look at skills, begin new ones, check them.",
    "tokens": "Make and revoke the tokens of the HTTP interface.",
}

# The module of a command below `cli.commands`, and its name there, where they differ from the command's own name.
_MODULES = {
    **{name: (f"{name}.group", name) for name in ("backup", "doctor", "gateway", "memory", "sessions", "setup")},
    "import": ("import_.group", "import_"),
    "restore": ("backup.restore", "restore"),
}


class _Commands(click.Group):
    """Imports the one command that is asked for; the list of them needs none. Without one, a conversation begins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _MODULES.get(cmd_name, (cmd_name, cmd_name))
        return getattr(import_module(f"everthread.cli.commands.{module}"), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            # One word may be a slip of the fingers; several are meant for the agent.
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]}?" if near else 'to ask something, use everthread -p "..."'
            ctx.fail(f"There is no command {args[0][:40]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-p", "--prompt", metavar="PROMPT", help="Answer this and exit; - takes it from stdin.")
@click.option("-m", "--model", metavar="MODEL", default="", help="The model to use: PROVIDER/MODEL.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Go on with the latest conversation.")
@click.option(
    "-r", "--resume", metavar="ID|TITLE", help="Go on with this conversation.", shell_complete=completing.sessions
)
@click.option("--json", "as_json", is_flag=True, help="With -p: print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Show what is recalled and what tools answer.")
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
@home_option
@click.pass_context
def everthread(
    context: click.Context,
    prompt: str | None,
    model: str,
    latest: bool,
    resume: str | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """An AI agent that never loses the thread. Without a command, a conversation begins.

    Everything is kept in one folder: the one given with --home, else $EVERTHREAD_HOME, else
    $XDG_DATA_HOME/everthread, else ~/.everthread.

    \b
    Examples:
      everthread -c
      everthread -p "What did I say about Lisbon?"
      everthread sessions list
      everthread journal status --json
      everthread --home /srv/agent forget "Trip to Lisbon"
      everthread setup local

    Exit codes: 0 done, 1 not found or refused, 2 wrong usage, 75 try again later, 78 the home or its
    configuration can't be used, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        if prompt is not None or model or latest or resume is not None or as_json or verbose:
            raise click.UsageError(f"{context.invoked_subcommand}: the options before it are for conversations")
        return
    if latest and resume is not None:
        raise click.UsageError("-c and -r name two conversations; give one of them")
    if as_json and prompt is None:
        raise click.UsageError("--json is for the answer to -p PROMPT")
    if resume == "":
        raise click.UsageError("-r is empty; give an id or a title")
    context.exit(_converse(context.ensure_object(CliContext), prompt, model, latest, resume or "", as_json, verbose))


def _converse(
    invocation: CliContext, prompt: str | None, model: str, latest: bool, resume: str, as_json: bool, verbose: bool
) -> int:
    from everthread.cli.chat.session import ChatOptions

    wish = ChatOptions(model, latest, resume, verbose)
    if prompt is not None:
        from everthread.cli.chat.oneshot import ask_once

        return invocation.talk(lambda runtime: ask_once(runtime, wish, prompt, as_json=as_json))
    from everthread.cli.chat.chat import chat

    interactive = sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()
    return invocation.talk(lambda runtime: chat(runtime, wish, interactive=interactive))


def run(
    open_runtime: OpenRuntime,
    arguments: Sequence[str] | None = None,
    *,
    glance: Glance | None = None,
    open_serving: OpenRuntime | None = None,
) -> int:
    """Carry out one command line; the exit code. Whatever goes wrong is one line on stderr, never a traceback."""
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        # A title that the terminal can't show must not keep the rest from being shown.
        stdout.reconfigure(errors="backslashreplace")
    try:
        invocation = CliContext(open_runtime, glance, open_serving)
        code = everthread.main(arguments, prog_name="everthread", standalone_mode=False, obj=invocation)
        if isinstance(stdout, io.TextIOWrapper) and not stdout.closed:
            # What can't be written is told of by us; the interpreter would do it in its own words.
            stdout.flush()
    except SystemExit as end:
        # Click's way out when the reader of a pipe has gone, or to complete a word for a shell.
        code = end.code
    except BaseException as error:  # noqa: BLE001 - the end of the line: told to the user, in words
        code = report(error)
    return code if isinstance(code, int) else 0
