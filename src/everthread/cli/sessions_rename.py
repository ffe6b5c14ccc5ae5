"""`everthread sessions rename`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli import completing, show
from everthread.cli.opened import Invocation, Runtime, home_option, json_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.model import Session


@click.command("rename")
@click.argument("session", metavar="ID|TITLE", shell_complete=completing.sessions)
@click.argument("title", metavar="NEW")
@json_option
@home_option
@pass_invocation
def rename_sessions(invocation: Invocation, session: str, title: str, as_json: bool) -> None:
    """Give a session another title. No two sessions of an owner have the same one.

    \b
    Examples:
      everthread sessions rename 01JZ8Q4T "Trip to Porto"
      everthread sessions rename "Trip to Lisbon" "Trip to Porto" --json
    """
    from everthread.lifecycle.finding import find_session_of_any_owner

    async def rename(runtime: Runtime) -> tuple[Session, str]:
        found = await runtime.store.read(lambda uow: find_session_of_any_owner(uow, session, exactly=True))
        return found, await runtime.lifecycle.rename(found.id, title, owner=found.owner)

    (found, now), _ = invocation.act(rename)
    if as_json:
        show.print_json({"id": found.id, "title": now, "before": found.title})
    else:
        click.echo(f'{found.id} is called "{show.one_line(now)}" now.')
