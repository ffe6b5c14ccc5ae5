"""`everthread sessions browse`: choose a session from a list and show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.context import CliContext, common_options
from everthread.cli.output import print_json
from everthread.cli.session_output import newest_sessions, session_as_json
from everthread.domain.text_format import local_time, pluralize

if TYPE_CHECKING:
    from everthread.domain.model import Session

_LISTED_MAX = 10_000


@click.command("browse")
@common_options
def browse_sessions(cli: CliContext, as_json: bool) -> None:
    """Choose a session and show it. Arrow keys move, typing filters, Enter selects, Esc or q quits.

    With --json, the chosen session is printed as by `sessions list`.

    \b
    Examples:
      everthread sessions browse
      everthread --home /srv/agent sessions browse
    """
    import asyncio

    from everthread.cli.commands.sessions.show import show_session
    from everthread.cli.picker import is_interactive, pick

    if not is_interactive():
        raise click.UsageError("browse needs a terminal. Use `everthread sessions list` instead")
    found = newest_sessions(cli, _LISTED_MAX)
    if not found:
        click.echo(f"No sessions yet in {cli.settings.home}.", err=as_json)
        return
    chosen = asyncio.run(pick("Sessions", [_row(session, turns) for session, turns in found]))
    if chosen is None:
        return
    if as_json:
        print_json(session_as_json(*found[chosen]))
    else:
        show_session(cli, found[chosen][0].id)


def _row(session: Session, turns: int) -> str:
    when, title = local_time(session.active_at), session.title or "-"
    return f"{when}  {title}  ({pluralize(turns, 'turn')}, {session.key.platform})"
