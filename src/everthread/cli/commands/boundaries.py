"""`everthread boundaries`: the audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import output as show
from everthread.cli.context import CliContext, home_option, json_option, limit_option, pass_invocation

if TYPE_CHECKING:
    from everthread.store.sessions import BoundaryRow
    from everthread.store.unit_of_work import UnitOfWork


@click.command()
@json_option
@limit_option
@home_option
@pass_invocation
def boundaries(invocation: CliContext, as_json: bool, limit: int) -> None:
    """Show every change of a conversation: who, when, why, from where to where.

    \b
    Examples:
      everthread boundaries
      everthread boundaries --limit 100 --json
    """

    def trail(uow: UnitOfWork) -> tuple[BoundaryRow, ...]:
        return uow.sessions.boundaries(limit=limit)

    found = invocation.look(lambda runtime: runtime.store.read(trail), nothing=())
    if as_json:
        show.print_json([_as_json(row) for row in found])
    elif not found:
        click.echo(f"No boundaries yet in {invocation.settings.home}.")
    else:
        rows = [
            (
                *(show.local_time(row.at), row.kind, row.from_session or "-", row.to_session or "-"),
                *(row.actor, str(row.key)),
            )
            for row in found
        ]
        click.echo(show.table(("WHEN", "BOUNDARY", "FROM", "TO", "BY", "KEY"), rows))


def _as_json(row: BoundaryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": show.iso_time(row.at),
        "boundary": row.kind,
        "from": row.from_session,
        "to": row.to_session,
        "by": row.actor,
        "key": str(row.key),
        "epoch": row.epoch,
        "owner": row.owner,
    }
