"""`everthread sessions delete`: what `forget` does to a session, under the name that people look for here."""

from __future__ import annotations

import click

from everthread.cli import completing
from everthread.cli.forget import forget_it
from everthread.cli.opened import Invocation, home_option, json_option, pass_invocation


@click.command("delete")
@click.argument("session", metavar="ID|TITLE", shell_complete=completing.sessions)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@home_option
@pass_invocation
def delete_sessions(invocation: Invocation, session: str, yes: bool, as_json: bool) -> None:
    """Forget a session, as `everthread forget` does. There is no way back.

    Its words leave this store at once. Memory providers are told to forget as well; those that can't are named.

    \b
    Examples:
      everthread sessions delete 01JZ8Q4T
      everthread sessions delete "Trip to Lisbon" --yes
    """
    forget_it(invocation, session=session, yes=yes, as_json=as_json)
