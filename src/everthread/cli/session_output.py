"""List and format sessions; shared by commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everthread.cli.context import CliContext, CliRuntime
from everthread.cli.output import iso_time
from everthread.domain.text_format import one_line

if TYPE_CHECKING:
    from everthread.domain.model import Session
    from everthread.store.unit_of_work import UnitOfWork


def newest_sessions(cli: CliContext, limit: int) -> Sequence[tuple[Session, int]]:
    """Return sessions of every owner, most recently active first, with their numbers of turns."""

    def read(uow: UnitOfWork) -> Sequence[tuple[Session, int]]:
        return [(session, uow.turns.count(session)) for session in uow.sessions.conversations(limit)]

    found = cli.list_newest(limit)
    return cli.read(lambda runtime: runtime.store.read(read), default=[]) if found is None else found


def session_state(session: Session) -> str:
    return "open" if session.ended_at is None else f"ended ({session.end_reason})"


def session_as_json(session: Session, turns: int) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "state": "open" if session.ended_at is None else "ended",
        "end_reason": session.end_reason,
        "turns": turns,
        "last_active": iso_time(session.active_at),
        "opened": iso_time(session.opened_at),
        "key": str(session.key),
        "owner": session.owner,
        "kind": session.kind.value,
        "cause": session.cause.value,
        "parent": session.parent_id,
    }


def session_name(session: Session) -> str:
    """Return the title and id of a session, for use in a sentence."""
    return f'"{one_line(session.title)}" ({session.id})' if session.title else session.id


async def find_session_id(runtime: CliRuntime, text: str) -> str:
    """Find the session that a user names by an id, a prefix of an id or a title. Raises `NotFound`."""
    from everthread.lifecycle.session_lookup import find_session_of_any_owner

    return (await runtime.store.read(lambda uow: find_session_of_any_owner(uow, text))).id
