"""`everthread sessions browse`: choose a session with the arrow keys and read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, pass_invocation
from everthread.cli.session_output import newest, session_as_json

if TYPE_CHECKING:
    from everthread.domain.model import Session

_LISTED_MAX = 10_000


@click.command("browse")
@json_option
@home_option
@pass_invocation
def browse_sessions(invocation: CliContext, as_json: bool) -> None:
    """Choose a session and read it: arrow keys move, typing narrows the list, Enter shows, Esc or q leaves.

    With --json, what is chosen is printed as `sessions list` would print it.

    \b
    Examples:
      everthread sessions browse
      everthread --home /srv/agent sessions browse
    """
    import asyncio

    from everthread.cli.commands.sessions.show import show_session
    from everthread.cli.picker import at_a_terminal, pick

    if not at_a_terminal():
        raise click.UsageError("browse needs a terminal; `everthread sessions list` needs none")
    found = newest(invocation, _LISTED_MAX)
    if not found:
        click.echo(f"No sessions yet in {invocation.settings.home}.", err=as_json)
        return
    chosen = asyncio.run(pick("Sessions", [_row(session, turns) for session, turns in found]))
    if chosen is None:
        return
    if as_json:
        show.print_json(session_as_json(*found[chosen]))
    else:
        show_session(invocation, found[chosen][0].id)


def _row(session: Session, turns: int) -> str:
    when, title = show.local_time(session.active_at), session.title or "-"
    return f"{when}  {title}  ({show.counted(turns, 'turn')}, {session.key.platform})"
