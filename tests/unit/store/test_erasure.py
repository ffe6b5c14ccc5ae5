import pytest

from everthread.domain.forgotten_words import fact_identity
from everthread.domain.media import safe_file_name
from everthread.domain.model import (
    FORGOTTEN,
    Cause,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionKind,
    ToolCall,
    TurnStatus,
)
from everthread.domain.schedule import Schedule
from everthread.store.incidents import Incident
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
        assert (uow.erasure.forget_count("ann"), uow.erasure.forget_count("bob")) == (count, 0)
    assert uow.erasure.has_tombstone("session", "s1")
    assert not uow.erasure.has_tombstone("note", "s1")


def test_a_fact_is_erased_from_an_error_in_every_wording_that_was_forgotten(uow: UnitOfWork, session: Session) -> None:
    for text in ("The PIN is 4711", "the PIN is 4711", "the  PIN\nis 4711"):
        marks = uow.erasure.scrubber.marks("ann", text)
        uow.erasure.add_tombstone("fact", fact_identity("ann", text), "ann", 1.0, marks)
    uow.erasure.add_tombstone("fact", fact_identity("ann", "the pin is 4711"), "ann", 2.0)
    for text in ("The PIN is 4711", "the PIN is 4711", "the  PIN\nis 4711", "the  PIN\\nis 4711"):
        assert uow.erasure.erase_facts_from_error(f"rejected: {text}", session.id) == f"rejected: {FORGOTTEN}"
    assert uow.erasure.forget_count("ann") == 4


def test_the_answer_of_a_command_loses_a_fact_that_it_shows_on_one_line(uow: UnitOfWork) -> None:
    text = "The PIN is 4711\nof the safe"
    marks = uow.erasure.scrubber.marks("ann", text)
    uow.erasure.add_tombstone("fact", fact_identity("ann", text), "ann", 1.0, marks)
    assert uow.erasure.erase_facts_forgotten_since("you: The PIN is 4711 of the safe", "ann", 0) == f"you: {FORGOTTEN}"


def test_stored_text_keeps_words_that_contain_a_fact(uow: UnitOfWork, session: Session, key: SessionKey) -> None:
    text, erased = "My team drinks tea, not steam", f"My team drinks {FORGOTTEN}, not steam"
    call = ToolCall("c1", "look", '{"about": "team, tea"}')
    uow.turns.add(session, 1, "t1", TurnStatus.DONE, [Message(Role.ASSISTANT, text, (call,))], 1.0)
    for number, content in enumerate(("the team", "the tea")):
        uow.outbox.attach(f"r{number}", "ann", "list.txt", content.encode())
    uow.sessions.set_title(session.id, "Team of steam")
    uow.schedules.add(Schedule("x1", "ann", "tea-team", "0 7 * * *", "UTC", 0.0, text, next_at=100.0))
    uow.incidents.add(Incident(1.0, "lanes", None, "the team timed out"))
    uow.erasure.scrubber.scrub_fact(noted(uow, session, "tea"), "ann")
    turn, task = uow.turns.get(session.id, 1), uow.schedules.get("x1")
    assert turn is not None
    assert task is not None
    (message,) = turn.messages
    assert (message.content, message.tool_calls[0].arguments) == (erased, f'{{"about": "team, {FORGOTTEN}"}}')
    assert (task.prompt, task.name) == (erased, "x1")
    assert [uow.outbox.attachment(f"r{number}") is None for number in range(2)] == [False, True]
    stored = uow.sessions.get(session.id)
    assert stored is not None
    assert stored.title == "Team of steam"
    assert len(uow.incidents.newest(9)) == 1
    assert uow.erasure.scrubber.find("tea", "ann") == ()


def test_text_written_later_keeps_words_that_contain_a_fact(uow: UnitOfWork, session: Session) -> None:
    uow.erasure.add_tombstone("fact", fact_identity("ann", "tea"), "ann", 1.0, uow.erasure.scrubber.marks("ann", "tea"))
    text = "My team eats steak"
    assert uow.erasure.erase_facts_not_noted_again(text, "ann", ()) == text
    assert uow.erasure.erase_facts_not_noted_again("I like tea", "ann", [text]) == f"I like {FORGOTTEN}"
    assert uow.erasure.erase_facts_from_error(text, session.id) == text
    assert uow.erasure.erase_facts_from_error(f"{text} with tea", None) == f"{text} with {FORGOTTEN}"


def noted(uow: UnitOfWork, session: Session, text: str) -> str:
    uow.notes.put(
        NoteVersion("n1", 1, session.owner, NoteTarget.USER, NoteAction.ADD, text, session.id, None, 1.0),
    )
    return "n1"


def test_incidents_of_other_owners_and_of_the_operator_are_kept(
    uow: UnitOfWork, session: Session, key: SessionKey
) -> None:
    uow.sessions.add(Session("s2", "bob", key, SessionKind.CHAT, Cause.NEW, 1.0))
    for session_id, text in (("s1", "ann's"), ("s2", "the model timed out"), (None, "no model"), (None, "disk full")):
        uow.incidents.add(Incident(1.0, "memory:p", session_id, text))
    uow.erasure.scrubber.scrub_fact(noted(uow, session, "model"), "ann")
    assert sorted(incident.text for incident in uow.incidents.newest(9)) == ["disk full", "the model timed out"]


def test_forgetting_an_owner_deletes_incidents_of_no_session_that_quote_their_notes(
    uow: UnitOfWork, session: Session
) -> None:
    noted(uow, session, "the gate code")
    for session_id, text in (("s1", "ann's"), (None, "bad note: the gate code"), (None, "background delivery stopped")):
        uow.incidents.add(Incident(1.0, "lanes", session_id, text))
    uow.erasure.scrubber.scrub_owner("ann")
    assert [incident.text for incident in uow.incidents.newest(9)] == ["background delivery stopped"]


@pytest.mark.parametrize(
    ("fact", "name", "is_kept"),
    [
        ("Ann", "planning", True),
        ("ann", "planning", True),
        ("日本", "task", True),
        ("Ann", "call-ann-now", False),
        ("Ann", "call_ann", False),
        ("gate code!", "the-gate-code", False),
        ("gate code", "the-gate-codes", True),
    ],
)
def test_a_task_loses_its_name_if_it_contains_the_fact_as_whole_words(
    uow: UnitOfWork, session: Session, fact: str, name: str, is_kept: bool
) -> None:
    uow.schedules.add(Schedule("x1", "ann", name, "0 7 * * *", "UTC", 0.0, "do it", next_at=100.0))
    uow.erasure.scrubber.scrub_fact(noted(uow, session, fact), "ann")
    assert uow.schedules.named("ann", name if is_kept else "x1") is not None


@pytest.mark.parametrize(("fact", "text"), [("$HOME", "set MY_HOME"), ("(test)", "a _test_ file"), ("/etc", "_etc")])
def test_the_file_name_form_of_one_word_is_erased_from_file_names_only(
    uow: UnitOfWork, session: Session, key: SessionKey, fact: str, text: str
) -> None:
    reply = Reply("t1", key, session.id, "ann", text, ReplyState.READY, 1.0, file=f"{safe_file_name(fact)}.txt")
    uow.outbox.put_reply(reply)
    uow.erasure.scrubber.scrub_fact(noted(uow, session, fact), "ann")
    stored = uow.outbox.reply("t1")
    assert stored is not None
    assert (stored.text, stored.file) == (text, f"{FORGOTTEN}.txt")


def test_the_file_name_form_of_several_words_is_erased_from_text(
    uow: UnitOfWork, session: Session, key: SessionKey
) -> None:
    uow.outbox.put_reply(Reply("t1", key, session.id, "ann", "see 1-the_gate_code.txt", ReplyState.READY, 1.0))
    uow.erasure.scrubber.scrub_fact(noted(uow, session, "the gate code"), "ann")
    stored = uow.outbox.reply("t1")
    assert stored is not None
    assert stored.text == f"see 1-{FORGOTTEN}.txt"
