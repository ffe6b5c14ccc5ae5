"""`everthread sessions delete` (same as `everthread forget SESSION`) and `everthread sessions rename`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everthread.cli.commands.forget import forget_it
from everthread.cli.context import CliContext, CliRuntime, common_options
from everthread.cli.output import Result, render
from everthread.cli.shell_complete import complete_sessions
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from everthread.domain.model import Session


@click.command("delete")
@click.argument("session", metavar="ID|TITLE", shell_complete=complete_sessions)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common_options
def delete_sessions(cli: CliContext, session: str, yes: bool, as_json: bool) -> None:
    """Forget a session, same as `everthread forget`. This can't be undone.

    The text is deleted from the store immediately. Memory providers are asked to delete it too; those that can't are
    listed.

    \b
    Examples:
      everthread sessions delete 01JZ8Q4T
      everthread sessions delete "Trip to Lisbon" --yes
    """
    forget_it(cli, session=session, yes=yes, as_json=as_json)


@click.command("rename")
@click.argument("session", metavar="ID|TITLE", shell_complete=complete_sessions)
@click.argument("title", metavar="NEW")
@common_options
def rename_sessions(cli: CliContext, session: str, title: str, as_json: bool) -> None:
    """Rename a session. Titles are unique per owner.

    \b
    Examples:
      everthread sessions rename 01JZ8Q4T "Trip to Porto"
      everthread sessions rename "Trip to Lisbon" "Trip to Porto" --json
    """
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    async def rename(runtime: CliRuntime) -> tuple[Session, str]:
        found = await runtime.store.read(lambda uow: find_session_of_any_owner(uow, session, exactly=True))
        return found, await runtime.lifecycle.rename(found.id, title, owner=found.owner)

    found, now = cli.write(rename)
    data = {"id": found.id, "title": now, "before": found.title}
    render(Result(data, f'{found.id} is now titled "{one_line(now)}".'), as_json)
