"""The owner's session for what belongs to no conversation."""

from __future__ import annotations

import hashlib

from everthread.domain.model import Cause, ChatType, Kind, Session, SessionKey, SessionRef
from everthread.lifecycle.log import ref_to
from everthread.ports.store import UnitOfWork


def desk(uow: UnitOfWork, owner: str, now: float) -> tuple[Session, SessionRef]:
    """Made on first use."""
    session_id = f"notes:{owner}"
    key = SessionKey("main", "notes", ChatType.DM, hashlib.sha256(owner.encode()).hexdigest()[:32])
    session = uow.sessions.get(session_id)
    if session is None:
        session = Session(session_id, owner, key, Kind.NOTES, Cause.NEW, opened_at=now, active_at=now)
        uow.sessions.add(session)
    return session, ref_to(session, key, 0)
