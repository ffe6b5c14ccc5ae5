from everthread.adapters.sqlite.connection import SqliteDatabase
from everthread.domain.model import Session, SessionKind
from everthread.store import session_list
from everthread.store.unit_of_work import UnitOfWork


def test_conversations_are_listed_by_activity_without_notes_and_delegated_work(
    uow: UnitOfWork, session: Session, database: SqliteDatabase
) -> None:
    uow.sessions.save(session.replace(active_at=9.0))
    uow.sessions.add(session.replace(id="s2", active_at=5.0))
    for number, kind in enumerate((SessionKind.NOTES, SessionKind.SUBAGENT, SessionKind.CRON), 3):
        uow.sessions.add(session.replace(id=f"s{number}", kind=kind, active_at=20.0))
    listed = session_list.conversations(database.execute, 10)
    assert [found.id for found in listed] == ["s1", "s2"]
    everything = session_list.conversations(database.execute, 10, delegated=True)
    assert [found.id for found in everything] == ["s5", "s4", "s1", "s2"]


def test_a_page_continues_after_the_last_session_of_the_previous_one(
    uow: UnitOfWork, session: Session, database: SqliteDatabase
) -> None:
    for number in (2, 3):
        uow.sessions.add(session.replace(id=f"s{number}", active_at=float(number)))
    first = session_list.page(database.execute, session.owner, 2)
    assert [found.id for found in first] == ["s3", "s2"]
    last = first[-1]
    rest = session_list.page(database.execute, session.owner, 2, (last.active_at, last.id))
    assert [found.id for found in rest] == ["s1"]
