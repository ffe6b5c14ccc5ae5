"""`everthread sessions`: what conversations there are, and what can be done with them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, limit_option, pass_invocation
from everthread.cli.session_output import newest, session_as_json, state

if TYPE_CHECKING:
    pass

# Each verb's module, and how its own help begins; a module is loaded when its verb is used.
_VERBS = {
    "list": ("group", "List sessions."),
    "browse": ("browse", "Choose a session and read it."),
    "show": ("show", "Show what was said."),
    "tree": ("tree", "Draw which session grew out of which."),
    "rename": ("edit", "Give a session another title."),
    "export": ("export", "Write sessions as lines of JSON."),
    "import": ("import_", "Take in the sessions of a FILE."),
    "prune": ("prune", "Remove sessions that ended long ago."),
    "delete": ("edit", "Forget a session."),
}


class _Verbs(click.Group):
    """Imports the one verb that is asked for; each is called VERB_sessions in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        return getattr(import_module(f"everthread.cli.commands.sessions.{_VERBS[cmd_name][0]}"), f"{cmd_name}_sessions")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, words) for verb, (_, words) in _VERBS.items()])


@click.group(cls=_Verbs)
def sessions() -> None:
    """Look at conversations, name them, copy them, remove them.

    Wherever a session is named, its id will do, the beginning of it (4 characters or more), or its title.

    \b
    Examples:
      everthread sessions list --limit 5
      everthread sessions show "Trip to Lisbon"
      everthread sessions export --all -o everything.jsonl
    """


@click.command("list")
@json_option
@limit_option
@home_option
@pass_invocation
def list_sessions(invocation: CliContext, as_json: bool, limit: int) -> None:
    """List sessions of every owner, the last active first.

    \b
    Examples:
      everthread sessions list
      everthread sessions list --limit 5 --json | jq -r '.[].title'
    """
    found = newest(invocation, limit)
    if as_json:
        show.print_json([session_as_json(session, turns) for session, turns in found])
    elif not found:
        click.echo(f"No sessions yet in {invocation.settings.home}.")
    else:
        rows = [
            (
                *(session.id, show.shortened(session.title or "-"), state(session), str(turns)),
                *(show.local_time(session.active_at), str(session.key)),
            )
            for session, turns in found
        ]
        click.echo(show.table(("ID", "TITLE", "STATE", "TURNS", "LAST ACTIVE", "KEY"), rows))
