"""The recall that each turn was shown."""

from __future__ import annotations

from everthread.domain.model import (
    Cause,
    ChatType,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Role,
    Session,
    SessionKey,
    SessionKind,
    TurnStatus,
)
from everthread.store.derived_text import WRITTEN
from everthread.store.recalled import ITEMS_MAX, RecalledItem
from everthread.store.unit_of_work import UnitOfWork


def add_session(uow: UnitOfWork, name: str, owner: str = "ann") -> Session:
    key = SessionKey("main", "telegram", ChatType.DM, name)
    session = Session(name, owner, key, SessionKind.CHAT, Cause.NEW, 1.0)
    uow.sessions.add(session)
    return session


def add_turn(uow: UnitOfWork, session: Session, number: int, *items: RecalledItem) -> None:
    messages = [Message(Role.USER, "question"), Message(Role.ASSISTANT, "answer")]
    uow.turns.add(session, number, f"{session.id}-{number}", TurnStatus.DONE, messages, float(number))
    uow.recalled.add(session.id, number, session.owner, items)


def quoting(uow: UnitOfWork, *sessions: str) -> list[tuple[str, int]]:
    return [(turn.session_id, turn.number) for turn in uow.recalled.quoting("ann", sessions=sessions)]


def test_the_recall_of_a_turn_is_read_in_its_order(uow: UnitOfWork) -> None:
    session, _ = add_session(uow, "here"), add_session(uow, "there")
    note = NoteVersion("n1", 1, "ann", NoteTarget.USER, NoteAction.ADD, "likes tea", "there", None, 1.0)
    uow.derived.put_note(note, WRITTEN)
    items = (RecalledItem("builtin", "there", 3, "", 0.5), RecalledItem("honcho", "there", None, "n1", 0.25))
    add_turn(uow, session, 1, *items)
    assert uow.recalled.of_turn("here", 1) == items
    assert uow.recalled.of_turn("here", 2) == ()


def test_a_provider_cannot_store_words_as_an_id(uow: UnitOfWork) -> None:
    session, _ = add_session(uow, "here"), add_session(uow, "bobs", owner="bob")
    add_turn(
        uow,
        session,
        1,
        RecalledItem("evil", "the gate code is 4711", 7, "my secret", float("nan")),
        RecalledItem("evil", "bobs", 2**70, "", 1.0),
    )
    assert uow.recalled.of_turn("here", 1) == (RecalledItem("evil"), RecalledItem("evil", score=1.0))


def test_a_turn_stores_a_limited_number_of_items_each_once(uow: UnitOfWork) -> None:
    session, _ = add_session(uow, "here"), add_session(uow, "there")
    add_turn(uow, session, 1, *(RecalledItem("builtin", "there", n % 50) for n in range(1000)))
    found = uow.recalled.of_turn("here", 1)
    assert len(found) == len({item.number for item in found}) == ITEMS_MAX


def test_answers_are_found_that_quote_an_answer_that_may_quote(uow: UnitOfWork) -> None:
    sessions = {name: add_session(uow, name) for name in ("gone", "b", "c", "d")}
    add_turn(uow, sessions["gone"], 1, RecalledItem("builtin", "d", 1))
    add_turn(uow, sessions["b"], 1, RecalledItem("builtin", "gone", 1))
    add_turn(uow, sessions["b"], 2)
    add_turn(uow, sessions["c"], 1, RecalledItem("builtin", "b", 1))
    add_turn(uow, sessions["d"], 1, RecalledItem("builtin", "b", 2))
    assert quoting(uow, "gone") == [("b", 1), ("c", 1)]
    assert quoting(uow, "nowhere") == []
    assert quoting(uow, "b") == [("gone", 1), ("c", 1), ("d", 1)]


def test_the_recall_of_a_turn_is_pruned_with_it(uow: UnitOfWork) -> None:
    session, other = add_session(uow, "here"), add_session(uow, "there")
    add_turn(uow, session, 1, RecalledItem("builtin", "there", 1))
    add_turn(uow, other, 1, RecalledItem("builtin", "here", 1))
    uow.archive.remove("here")
    assert quoting(uow, "there") == []
    assert quoting(uow, "here") == [("there", 1)]
