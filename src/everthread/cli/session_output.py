"""Look up sessions and print them: shared by the commands that name one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everthread.cli import output as show
from everthread.cli.context import CliContext

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.store.unit_of_work import UnitOfWork


def newest(invocation: CliContext, limit: int) -> Sequence[tuple[Session, int]]:
    """Conversations of every owner, the last active first, each with how many turns it shows."""

    def listed(uow: UnitOfWork) -> Sequence[tuple[Session, int]]:
        return [(session, uow.turns.count(session)) for session in uow.sessions.conversations(limit)]

    found = invocation.glance(limit)
    return invocation.look(lambda runtime: runtime.store.read(listed), nothing=[]) if found is None else found


def state(session: Session) -> str:
    return "open" if session.ended_at is None else f"ended ({session.end_reason})"


def session_as_json(session: Session, turns: int) -> dict[str, Any]:
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


def named(session: Session) -> str:
    """A session for a sentence: its title, if it has one, and its id."""
    return f'"{show.one_line(session.title)}" ({session.id})' if session.title else session.id


def nothing_there(text: str, invocation: CliContext) -> Exception:
    from everthread.domain.errors import NotFound

    return NotFound(f"there is no {text[:100]!r}: nothing is kept in {invocation.settings.home} yet")
