"""`everthread sessions`: what conversations there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, home_option, json_option, limit_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.ports import UnitOfWork


@click.group()
def sessions() -> None:
    """Look at conversations.

    \b
    Example:
      everthread sessions list --limit 5
    """


@sessions.command("list")
@json_option
@limit_option
@home_option
@pass_invocation
def list_sessions(invocation: Invocation, as_json: bool, limit: int) -> None:
    """List sessions of every owner, the last active first.

    \b
    Examples:
      everthread sessions list
      everthread sessions list --limit 5 --json | jq -r '.[].title'
    """

    found = newest(invocation, limit)
    if as_json:
        show.print_json([_as_json(session, turns) for session, turns in found])
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


def newest(invocation: Invocation, limit: int) -> Sequence[tuple[Session, int]]:
    """Conversations of every owner, the last active first, each with how many turns it shows."""

    def listed(uow: UnitOfWork) -> Sequence[tuple[Session, int]]:
        return [(session, uow.turns.count(session)) for session in uow.sessions.conversations(limit)]

    found = invocation.glance(limit)
    return invocation.look(lambda runtime: runtime.store.read(listed), nothing=[]) if found is None else found


def state(session: Session) -> str:
    return "open" if session.ended_at is None else f"ended ({session.end_reason})"


def _as_json(session: Session, turns: int) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "state": "open" if session.ended_at is None else "ended",
        "end_reason": session.end_reason,
        "turns": turns,
        "last_active": show.iso_time(session.active_at),
        "opened": show.iso_time(session.opened_at),
        "key": str(session.key),
        "owner": session.owner,
        "kind": session.kind.value,
        "cause": session.cause.value,
        "parent": session.parent_id,
    }
