"""`everthread boundaries`: the audit trail of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import CliContext, list_options
from everthread.cli.output import Result, iso_time, render, table
from everthread.domain.text_format import local_time

if TYPE_CHECKING:
    from everthread.store.sessions import BoundaryRow


@click.command()
@list_options
def boundaries(cli: CliContext, as_json: bool, limit: int) -> None:
    """List session boundaries, newest first: each start, resume, branch, compression and end of a session.

    \b
    Examples:
      everthread boundaries
      everthread boundaries --limit 100 --json
    """
    found = cli.read(lambda runtime: runtime.store.read(lambda uow: uow.sessions.boundaries(limit=limit)), default=())
    headings = ("WHEN", "BOUNDARY", "FROM", "TO", "BY", "KEY")
    empty = f"No boundaries yet in {cli.settings.home}."
    text = table(headings, [_row(row) for row in found], empty=empty)
    render(Result([_as_json(row) for row in found], text), as_json)


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
