"""What an owner's model calls came to: in one conversation, and over time."""

from __future__ import annotations

from msgspec import Struct

from everthread.domain.model import Cause, Session
from everthread.domain.spend import Used
from everthread.ports.store import UnitOfWork

DAY_S = 86_400.0
MONTH_DAYS = 30


class Usage(Struct, frozen=True):
    """By model, the dearest first."""

    conversation: tuple[Used, ...]
    """With the sessions that it was compressed from."""
    day: tuple[Used, ...]
    """Of the last 24 hours, as the limit counts them."""
    month: tuple[Used, ...]


def usage(uow: UnitOfWork, owner: str, session: Session | None, now: float) -> Usage:
    day = uow.spend.by_model(owner, now - DAY_S)
    month = uow.spend.by_model(owner, now - MONTH_DAYS * DAY_S)
    return Usage(of_conversation(uow, session) if session else (), day, month)


def of_conversation(uow: UnitOfWork, session: Session) -> tuple[Used, ...]:
    """By model, with the sessions that it was compressed from."""
    ids, first = [session.id], session
    while first.cause is Cause.COMPRESSION and (parent := uow.sessions.get(first.parent_id or "")) is not None:
        first = parent
        ids.append(first.id)
    # Nothing was spent in it before it was opened: older rows need not be looked at.
    return uow.spend.by_model(session.owner, first.opened_at, ids)
