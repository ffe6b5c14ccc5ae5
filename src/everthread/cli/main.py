"""The `everthread` command: options of a conversation, the table of commands, and `run`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, CliRuntime, ListNewest, OpenRuntime, home_option
from everthread.cli.exit_codes import report
from everthread.cli.lazy_group import LazyGroup
from everthread.cli.shell_complete import complete_sessions

if TYPE_CHECKING:
    from everthread.cli.chat.session import ChatOptions

_COMMANDS = {
    "backup": ("backup.group:backup", "Back up the home to a new FILE."),
    "boundaries": ("boundaries:boundaries", "List session boundaries."),
    "completion": ("completion:completion", "Print a shell completion script."),
    "config": ("config:config", "Show, change and check the settings."),
    "cron": ("cron.group:cron", "Schedule prompts for the agent."),
    "doctor": ("doctor.group:doctor", "Check the installation."),
    "forget": ("forget:forget", "Forget a session, a person or a note."),
    "gateway": ("gateway.group:gateway", "Run the gateway (HTTP, Telegram)."),
    "import": ("import_.group:import_", "Import data from another agent."),
    "journal": ("journal:journal", "Inspect and repair delivery to memory providers."),
    "logs": ("logs:logs", "Show the log."),
    "mcp": ("mcp:mcp", "List and remove the pins of MCP tools."),
    "memory": ("memory.group:memory", "Manage notes and memory providers."),
    "pairing": ("pairing:pairing", "Manage who may write to the agent."),
    "plugins": ("plugins:plugins", "List and approve plugins of installed packages."),
    "recall": ("recall:recall", "Show what memory recalls for QUERY."),
    "restore": ("backup.restore:restore", "Restore a home from a backup FILE."),
    "send": ("send:send", "Send TEXT to a chat."),
    "sessions": ("sessions.group:sessions", "List, show, export, import and delete sessions."),
    "setup": ("setup.group:setup", "Set up the model, its API key and memory."),
    "skills": ("skills:skills", "List, create and check skills."),
    "tokens": ("tokens:tokens", "Manage API tokens of the HTTP interface."),
}


class _Commands(LazyGroup):
    """Suggest a command for a misspelled one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            # One word may be a misspelled command; several words are probably a prompt.
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f"Did you mean {near[0]}?" if near else 'To ask the agent, use everthread -p "...".'
            ctx.fail(f"Unknown command {args[0][:40]!r}. {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    table=_COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-p", "--prompt", metavar="PROMPT", help="Answer PROMPT and exit; - reads it from stdin.")
@click.option("-m", "--model", metavar="MODEL", default="", help="Use this model: PROVIDER/MODEL.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Continue the latest session.")
@click.option("-r", "--resume", metavar="ID|TITLE", help="Resume this session.", shell_complete=complete_sessions)
@click.option("--json", "as_json", is_flag=True, help="With -p: print the answer as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show recalled memory and tool results.")
@click.version_option(package_name="everthread", message="everthread %(version)s", help="Show the version and exit.")
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
    """An AI agent that never loses the thread. Without a command, start a conversation.

    All data is in one folder, the home: --home, else $EVERTHREAD_HOME, else $XDG_DATA_HOME/everthread,
    else ~/.everthread.

    \b
    Examples:
      everthread -c
      everthread -p "What did I say about Lisbon?"
      everthread sessions list
      everthread journal status --json
      everthread --home /srv/agent forget "Trip to Lisbon"
      everthread setup local

    Exit codes: 0 success, 1 not found or refused, 2 usage error, 75 temporary failure (try again later),
    78 configuration error, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        if prompt is not None or model or latest or resume is not None or as_json or verbose:
            raise click.UsageError(
                f"Remove the options before {context.invoked_subcommand}: they apply to conversations only"
            )
        return
    if latest and resume is not None:
        raise click.UsageError("-c and -r exclude each other. Give one of them")
    if as_json and prompt is None:
        raise click.UsageError("--json needs -p PROMPT")
    if resume == "":
        raise click.UsageError("-r is empty. Give a session id or a title")
    from everthread.cli.chat.session import ChatOptions
    from everthread.cli.picker import is_interactive
    from everthread.cli.trust_questions import ask_for_trust

    cli, options = context.ensure_object(CliContext), ChatOptions(model, latest, resume or "", verbose)
    may_ask = prompt is None and is_interactive()
    context.exit(cli.open_home(_conversation(options, prompt, as_json=as_json), ask_for_trust if may_ask else None))


def _conversation(
    options: ChatOptions, prompt: str | None, *, as_json: bool
) -> Callable[[CliRuntime], Coroutine[Any, Any, int]]:
    from everthread.cli.picker import is_interactive

    if prompt is not None:
        from everthread.cli.chat.oneshot import ask_once

        return lambda runtime: ask_once(runtime, options, prompt, as_json=as_json)
    from everthread.cli.chat.chat import chat

    return lambda runtime: chat(runtime, options, interactive=is_interactive())


def run(
    open_runtime: OpenRuntime,
    arguments: Sequence[str] | None = None,
    *,
    list_newest: ListNewest | None = None,
    open_serving: OpenRuntime | None = None,
) -> int:
    """Run one command line and return its exit code. Errors are reported as one line on stderr, without a traceback."""
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        # A title that the terminal's encoding lacks must not make the command fail.
        stdout.reconfigure(errors="backslashreplace")
    try:
        cli = CliContext(open_runtime, list_newest, open_serving)
        code = everthread.main(arguments, prog_name="everthread", standalone_mode=False, obj=cli)
        if isinstance(stdout, io.TextIOWrapper) and not stdout.closed:
            # Flush here: an error at interpreter exit would be printed as a traceback.
            stdout.flush()
    except SystemExit as end:
        # Raised by click when a pipe is closed, and after shell completion.
        code = end.code
    except BaseException as error:  # noqa: BLE001 - outermost handler: reported to the user
        code = report(error)
    return code if isinstance(code, int) else 0
