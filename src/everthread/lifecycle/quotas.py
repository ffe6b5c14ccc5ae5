"""Check quotas inside the transaction that writes, so that requests at the same time cannot exceed them together.

The stored bytes are checked when a message is accepted and when a note is written. The answers of accepted messages are
stored in any case.
"""

from __future__ import annotations

from everthread.domain.clock_rules import latest_deadline
from everthread.domain.media import reserved_bytes
from everthread.domain.model import Cause, InboxRow, Session, SessionKind
from everthread.domain.quota import DAY_S, Quotas
from everthread.store.quota_counters import QuotaCounts
from everthread.store.unit_of_work import UnitOfWork

_NOT_COUNTED = (Cause.COMPRESSION, Cause.DELEGATION)


def check_message(uow: UnitOfWork, quotas: Quotas | None, row: InboxRow) -> None:
    """Raise `QuotaReached` if the person may not write the message that was just stored. Commands are not refused."""
    inbound = row.inbound
    if quotas is None or inbound.owner == quotas.exempt or inbound.command:
        return
    found = uow.quota_counters.get_at(inbound.owner, inbound.key)
    counts, is_in_session = found if found is not None else (_first_counts(uow, inbound.owner), True)
    quotas.check_stored(counts.stored_bytes)
    if reserved_bytes(inbound.media):
        quotas.check_media(counts.media_bytes)
    if not is_in_session:
        quotas.check_sessions(counts.sessions)


def check_note(uow: UnitOfWork, quotas: Quotas | None, owner: str) -> None:
    """Raise `StorageQuotaReached` if the person may not write another version of a note. Removing needs no check."""
    if quotas is None or owner == quotas.exempt:
        return
    counts = uow.quota_counters.get(owner) or _first_counts(uow, owner)
    quotas.check_stored(counts.stored_bytes)


def check_opening(uow: UnitOfWork, quotas: Quotas | None, session: Session, now: float) -> None:
    """Raise `QuotaReached` if the owner of a new session may not open it."""
    owner = session.owner
    if quotas is None or owner == quotas.exempt or session.kind is not SessionKind.CHAT:
        return
    if session.cause in _NOT_COUNTED:
        return
    counts = uow.quota_counters.get(owner) or _first_counts(uow, owner)
    quotas.check_sessions(counts.sessions)
    if session.cause is Cause.BRANCH:
        limit = quotas.forks_per_day
        quotas.check_forks(uow.quota_counters.forks(owner, now - DAY_S, latest_deadline(now), limit))


def _first_counts(uow: UnitOfWork, owner: str) -> QuotaCounts:
    # All data of the owner is read once.
    uow.leave_event_loop()
    return uow.quota_counters.add(owner)
