"""`everthread sessions`: what conversations there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everthread.cli import show
from everthread.cli.opened import Invocation, home_option, json_option, limit_option, pass_invocation

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.ports import UnitOfWork

_EVERY_TURN = 2**31


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

    def listed(uow: UnitOfWork) -> list[tuple[Session, int]]:
        return [(session, turns_of(uow, session)) for session in newest(uow, limit)]

    found = invocation.look(lambda runtime: runtime.store.read(listed), nothing=[])
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


def newest(uow: UnitOfWork, limit: int) -> list[Session]:
    """The sessions a person has to do with: no forgotten ones, and not the one that only holds a person's notes."""
    from everthread.domain.model import Kind

    asked = limit
    while True:
        found = uow.sessions.recent(owner=None, limit=asked)
        shown = [s for s in found if s.kind is not Kind.NOTES and s.forgotten_seq is None]
        if len(shown) >= limit or len(found) < asked:
            return shown[:limit]
        asked *= 2


def turns_of(uow: UnitOfWork, session: Session) -> int:
    """How many turns the session shows, inherited ones included."""
    return len(uow.turns.last_visible(session, _EVERY_TURN))


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
