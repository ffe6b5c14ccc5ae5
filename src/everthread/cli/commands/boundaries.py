"""`everthread boundaries`: the audit trail of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, home_option, json_option, limit_option, pass_cli
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.text_format import local_time

if TYPE_CHECKING:
    from everthread.store.sessions import BoundaryRow
    from everthread.store.unit_of_work import UnitOfWork


@click.command()
@json_option
@limit_option
@home_option
@pass_cli
def boundaries(cli: CliContext, as_json: bool, limit: int) -> None:
    """List session boundaries, newest first: each start, resume, branch, compression and end of a session.

    \b
    Examples:
      everthread boundaries
      everthread boundaries --limit 100 --json
    """

    def list_boundaries(uow: UnitOfWork) -> tuple[BoundaryRow, ...]:
        return uow.sessions.boundaries(limit=limit)

    found = cli.read(lambda runtime: runtime.store.read(list_boundaries), default=())
    headings = ("WHEN", "BOUNDARY", "FROM", "TO", "BY", "KEY")
    empty = f"No boundaries yet in {cli.settings.home}."
    result = Result(
        lambda: [_as_json(row) for row in found], lambda: table(headings, [_row(row) for row in found], empty=empty)
    )
    render(result, as_json)


def _row(row: BoundaryRow) -> tuple[str, ...]:
    return local_time(row.at), row.kind, row.from_session or "-", row.to_session or "-", row.actor, str(row.key)


def _as_json(row: BoundaryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": iso_time(row.at),
        "boundary": row.kind,
        "from": row.from_session,
        "to": row.to_session,
        "by": row.actor,
        "key": str(row.key),
        "epoch": row.epoch,
        "owner": row.owner,
    }
