from everthread.domain.model import Message, Role, Session, SessionKey, TurnStatus
from everthread.store.unit_of_work import UnitOfWork


def test_only_ended_sessions_without_a_key_can_be_pruned(uow: UnitOfWork, session: Session) -> None:
    assert uow.archive.ended_before(10.0) == ()
    ended = session.ended("new", 5.0)
    uow.sessions.save(ended)
    assert [found.id for found in uow.archive.ended_before(10.0)] == [session.id]
    assert uow.archive.ended_before(5.0) == ()


def test_removing_a_session_deletes_its_turns_and_messages(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    message = Message(Role.USER, "the pear tree")
    uow.turns.add(session, 1, "t1", TurnStatus.DONE, [message], 1.0)
    uow.search.index()
    assert len(uow.search.search(session.owner, "pear", limit=5)) == 1
    assert uow.archive.remove(session.id) == 1
    assert uow.sessions.get(session.id) is None
    assert uow.turns.get(session.id, 1) is None
    assert uow.search.search(session.owner, "pear", limit=5) == ()


def test_children_skip_forgotten_sessions_between_them(uow: UnitOfWork, session: Session) -> None:
    for child, parent in (("s2", "s1"), ("s3", "s2")):
        uow.sessions.add(session.replace(id=child, parent_id=parent))
    middle = uow.sessions.get("s2")
    assert middle is not None
    uow.sessions.save(middle.replace(forgotten_seq=1))
    assert uow.archive.children() == (("s1", "s3"),)
    assert uow.archive.children("s1") == (("s1", "s3"),)
