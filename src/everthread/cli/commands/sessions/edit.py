"""`everthread sessions delete`: what `forget` does to a session, under the name that people look for here.

`everthread sessions rename`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli import output as show
from everthread.cli import shell_complete as completing
from everthread.cli.commands.forget import forget_it
from everthread.cli.context import CliContext, CliRuntime, home_option, json_option, pass_invocation


@click.command("delete")
@click.argument("session", metavar="ID|TITLE", shell_complete=completing.sessions)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def delete_sessions(invocation: CliContext, session: str, yes: bool, as_json: bool) -> None:
    """Forget a session, as `everthread forget` does. There is no way back.

    Its words leave this store at once. Memory providers are told to forget as well; those that can't are named.

    \b
    Examples:
      everthread sessions delete 01JZ8Q4T
      everthread sessions delete "Trip to Lisbon" --yes
    """
    forget_it(invocation, session=session, yes=yes, as_json=as_json)


if TYPE_CHECKING:
    from everthread.domain.model import Session


@click.command("rename")
@click.argument("session", metavar="ID|TITLE", shell_complete=completing.sessions)
@click.argument("title", metavar="NEW")
@json_option
@home_option
@pass_invocation
def rename_sessions(invocation: CliContext, session: str, title: str, as_json: bool) -> None:
    """Give a session another title. No two sessions of an owner have the same one.

    \b
    Examples:
      everthread sessions rename 01JZ8Q4T "Trip to Porto"
      everthread sessions rename "Trip to Lisbon" "Trip to Porto" --json
    """
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    async def rename(runtime: CliRuntime) -> tuple[Session, str]:
        found = await runtime.store.read(lambda uow: find_session_of_any_owner(uow, session, exactly=True))
        return found, await runtime.lifecycle.rename(found.id, title, owner=found.owner)

    (found, now), _ = invocation.act(rename)
    if as_json:
        show.print_json({"id": found.id, "title": now, "before": found.title})
    else:
        click.echo(f'{found.id} is called "{show.one_line(now)}" now.')
