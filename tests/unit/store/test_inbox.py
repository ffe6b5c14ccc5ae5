from everthread.domain.model import Inbound, InboxState, SessionKey
from everthread.store.unit_of_work import UnitOfWork


def test_an_update_is_accepted_once(uow: UnitOfWork, key: SessionKey) -> None:
    first, is_new = uow.inbox.accept(Inbound(key, "ann", "hello", "bot", "7", user="u1"), 1.0)
    again, is_new_again = uow.inbox.accept(Inbound(key, "ann", "hello", "bot", "7", user="u1"), 2.0)
    assert (is_new, is_new_again) == (True, False)
    assert again == first
    assert first.inbound.text == "hello"
    assert uow.inbox.last_user(key) == "u1"


def test_messages_wait_in_order_and_commands_are_no_messages(uow: UnitOfWork, key: SessionKey) -> None:
    for text in ("one", "/new", "two"):
        uow.inbox.accept(Inbound(key, "ann", text, command=text.startswith("/")), 1.0)
    assert [row.inbound.text for row in uow.inbox.waiting(key)] == ["one", "two"]
    assert [row.inbound.text for row in uow.inbox.commands(key)] == ["/new"]
    assert uow.inbox.keys_waiting() == (key,)


def test_the_text_of_an_answered_message_is_cleared(uow: UnitOfWork, key: SessionKey) -> None:
    row, _ = uow.inbox.accept(Inbound(key, "ann", "hello"), 1.0)
    uow.inbox.assign(row.id, "s1", "t1")
    assert [taken.id for taken in uow.inbox.of_turn(key, "t1")] == [row.id]
    uow.inbox.end_turn(key, "t1", InboxState.DONE)
    done = uow.inbox.get(row.id)
    assert done is not None
    assert (done.state, done.inbound.text) == (InboxState.DONE, "")
