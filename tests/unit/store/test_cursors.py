from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.domain.events import EntryKind, LogEntry
from everthread.domain.model import Session, SessionRef
from everthread.store.unit_of_work import UnitOfWork


def append(uow: UnitOfWork, session: Session, seq: int) -> None:
    ref = SessionRef(session.id, 1, session.key, 1, session.owner)
    uow.log.append(LogEntry(ref, seq, EntryKind.REWIND, float(seq), detail={"turns": []}))
    uow.sessions.save(session.replace(log_seq=seq))


def test_a_new_provider_starts_at_the_end_of_the_logs(uow: UnitOfWork, session: Session) -> None:
    append(uow, session, 1)
    uow.cursors.register("diary")
    assert not uow.cursors.discover("diary", 10.0, 100)
    append(uow, session, 2)
    assert uow.cursors.discover("diary", 10.0, 100)
    cursor = uow.cursors.get("diary", session.id)
    assert cursor is not None
    assert (cursor.seq, cursor.due_at) == (1, 10.0)
    assert uow.cursors.due_sessions("diary", 10.0, 5) == (session.id,)


def test_a_lane_that_is_set_back_has_a_new_replay_number(
    uow: UnitOfWork, database: SqliteDatabase, session: Session
) -> None:
    database.connection.execute("PRAGMA user_version = 70")
    uow.cursors.register("diary")
    append(uow, session, 1)
    uow.cursors.discover("diary", 1.0, 100)
    before = uow.cursors.get("diary", session.id)
    assert before is not None
    assert before.replay == 70
    assert uow.cursors.restart("diary", session.id, 2.0) == 1
    after = uow.cursors.get("diary", session.id)
    assert after is not None
    assert (after.seq, after.replay) == (0, 71)
