from everthread.domain.model import FORGOTTEN, Message, Role, Session, TurnStatus
from everthread.store.unit_of_work import UnitOfWork


def test_scrubbing_a_session_erases_its_messages(uow: UnitOfWork, session: Session) -> None:
    uow.turns.add(session, 1, "t1", TurnStatus.DONE, [Message(Role.USER, "my secret")], 1.0)
    uow.erasure.scrubber.scrub_session(session)
    turn = uow.turns.get(session.id, 1)
    assert turn is not None
    assert [message.content for message in turn.messages] == [FORGOTTEN]


def test_forgetting_the_same_thing_again_counts_again(uow: UnitOfWork) -> None:
    for count in (1, 2):
        uow.erasure.add_tombstone("session", "s1", "ann", 1.0)
        assert (uow.erasure.tombstones("ann"), uow.erasure.tombstones("bob")) == (count, 0)
    assert uow.erasure.has_tombstone("session", "s1")
    assert not uow.erasure.has_tombstone("note", "s1")
