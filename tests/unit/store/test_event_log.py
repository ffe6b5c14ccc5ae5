from everthread.domain.events import EntryKind, LogEntry, SessionOpened, SessionRewound
from everthread.domain.model import Cause, Session, SessionKey
from everthread.store.unit_of_work import UnitOfWork


def test_entries_are_read_in_order_and_become_events(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    ref = session.ref_at(key, 1)
    opened = LogEntry(ref, 1, EntryKind.OPENED, 1.0, None, {"parent": "", "reset": False, "reason": "new_session"})
    rewind = LogEntry(ref, 2, EntryKind.REWIND, 2.0, None, {"turns": [3, 4]})
    for entry in (opened, rewind):
        uow.log.append(entry)
    assert uow.log.after(session.id, 0) == opened
    assert uow.log.after(session.id, 1) == rewind
    assert uow.log.after(session.id, 2) is None
    assert uow.log.of_kind(session.id, EntryKind.REWIND) == (rewind,)
    assert uow.log.event(opened) == SessionOpened(ref, "", False, Cause.NEW)
    assert uow.log.event(rewind) == SessionRewound(ref, (3, 4))
    assert uow.log.end() == 2


def test_the_last_close_is_found_up_to_a_position(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    for seq in (2, 5):
        detail: dict[str, object] = {"through": seq - 1, "turn": 0}
        uow.log.append(LogEntry(session.ref_at(key, 1), seq, EntryKind.CLOSE, float(seq), None, detail))
    found = [uow.log.last_close(session.id, up_to) for up_to in (1, 4, 5)]
    assert [entry.seq if entry else None for entry in found] == [None, 2, 5]
