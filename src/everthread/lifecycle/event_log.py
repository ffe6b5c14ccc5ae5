"""Writing to a session's log. A session value goes in, the session with its new positions comes out, unsaved."""

from __future__ import annotations

from everthread.domain.events import EntryKind, LogEntry
from everthread.domain.model import Kind, Session, SessionKey, SessionRef
from everthread.store.unit_of_work import UnitOfWork


def ref_to(session: Session, key: SessionKey, epoch: int) -> SessionRef:
    return SessionRef(session.id, session.generation, key, epoch, session.owner)


def append(
    uow: UnitOfWork,
    session: Session,
    ref: SessionRef,
    kind: EntryKind,
    now: float,
    *,
    number: int | None = None,
    detail: dict[str, object] | None = None,
) -> Session:
    """Write the next entry."""
    seq = session.log_seq + 1
    uow.log.append(LogEntry(ref, seq, kind, now, number, detail))
    return session.but(log_seq=seq, dirty_seq=seq if kind.dirties else session.dirty_seq)


def close(uow: UnitOfWork, session: Session, ref: SessionRef, now: float) -> Session:
    """Close the session's memory, if there is anything to close."""
    if not session.dirty:
        return session
    through = session.log_seq
    detail: dict[str, object] = {"through": through, "turn": session.last_turn}
    return append(uow, session, ref, EntryKind.CLOSE, now, detail=detail).but(closed_seq=through)


def close_if_left(uow: UnitOfWork, session: Session, ref: SessionRef, now: float) -> Session:
    """Close what came to a session after every key had left it: no boundary will come to do it."""
    if session.kind is Kind.NOTES or uow.sessions.keys_on(session.id) or uow.slots.of_session(session.id):
        return session
    return close(uow, session, ref, now)
