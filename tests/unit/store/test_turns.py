import pytest

from everthread.domain.errors import TooLarge
from everthread.domain.model import Message, Role, Session, TurnStatus
from everthread.store import turns
from everthread.store.unit_of_work import UnitOfWork


def add(uow: UnitOfWork, session: Session, number: int) -> Session:
    messages = [Message(Role.USER, f"question {number}"), Message(Role.ASSISTANT, f"answer {number}")]
    uow.turns.add(session, number, f"t{number}", TurnStatus.DONE, messages, float(number))
    grown = session.replace(last_turn=number, log_seq=number)
    uow.sessions.save(grown)
    return grown


def test_a_view_holds_the_turns_in_order_with_their_messages(uow: UnitOfWork, session: Session) -> None:
    for number in (1, 2):
        session = add(uow, session, number)
    view = uow.turns.view(session)
    assert [[message.content for message in turn.messages] for turn in view.turns] == [
        ["question 1", "answer 1"],
        ["question 2", "answer 2"],
    ]
    assert uow.turns.count(session) == 2


def test_a_hidden_turn_is_in_no_view(uow: UnitOfWork, session: Session) -> None:
    for number in (1, 2):
        session = add(uow, session, number)
    uow.turns.hide(session, [2], 2)
    assert [turn.number for turn in uow.turns.view(session).turns] == [1]
    assert uow.turns.last_visible(session, 5) == (1,)
    assert uow.turns.count(session) == 1
    assert uow.turns.get(session.id, 2) is not None


def test_a_turn_with_too_many_messages_is_refused(
    uow: UnitOfWork, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MESSAGES_PER_TURN", 1)
    with pytest.raises(TooLarge, match="at most 1 messages"):
        add(uow, session, 1)


def test_indexing_is_due_after_many_turns(uow: UnitOfWork, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURNS_PER_INDEXING", 2)
    session = add(uow, session, 1)
    assert not uow.turns.index_due
    add(uow, session, 2)
    assert uow.turns.index_due
    uow.search.index()
    assert not uow.turns.index_due
