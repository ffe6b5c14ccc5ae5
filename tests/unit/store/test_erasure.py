import pytest
from msgspec.structs import replace

from everthread.domain.errors import Outdated
from everthread.domain.forgotten_words import fact_identity
from everthread.domain.media import safe_file_name
from everthread.domain.model import (
    FORGOTTEN,
    Cause,
    Inbound,
    InboxState,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Prefix,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionKind,
    ToolCall,
    TurnStatus,
)
from everthread.domain.schedule import Occurrence, Schedule
from everthread.store.derived_text import WRITTEN, NoteSource
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


def test_scrubbing_a_session_erases_the_problem_of_the_task_that_ran_in_it(uow: UnitOfWork, session: Session) -> None:
    uow.schedules.add(Schedule("x1", "ann", "call", "0 7 * * *", "UTC", 0.0, "do it", next_at=100.0))
    for at, session_id in enumerate((session.id, "other", session.id)):
        problem = "" if at == 2 else "the model rejected my secret"
        uow.schedules.add_occurrence(Occurrence("x1", float(at), "ann", session_id=session_id, problem=problem))
    uow.erasure.scrubber.scrub_session(session)
    problems = [time.problem for time in uow.schedules.occurrences("x1", 9)]
    assert problems == ["", "the model rejected my secret", FORGOTTEN]


def test_descendants_lose_a_title_that_comes_from_the_session(uow: UnitOfWork, session: Session) -> None:
    for name, title in (("s2", "The secret #2"), ("s3", "Another")):
        uow.sessions.add(Session(name, "ann", session.key, SessionKind.CHAT, Cause.BRANCH, 1.0, parent_id=session.id))
        uow.sessions.set_title(name, title)
    uow.erasure.scrubber.scrub_descendants(session.replace(title="The secret"), ("s2", "s3"))
    stored = [uow.sessions.get(name) for name in ("s2", "s3")]
    assert [each.title for each in stored if each] == [None, "Another"]


def test_erasing_notes_deletes_every_prefix_of_their_owner(uow: UnitOfWork, session: Session) -> None:
    def put_prefixes() -> None:
        for owner in ("ann", "bob"):
            prefix = Prefix(f"other-{owner}", uow.turns.prefix_number(f"other-{owner}") + 1, b"rules", 1.0)
            uow.derived.put_prefix(prefix, owner, 0)

    def prefixes() -> list[bool]:
        return [uow.turns.prefix(f"other-{owner}") is not None for owner in ("ann", "bob")]

    put_prefixes()
    uow.erasure.scrubber.scrub_session(session)
    uow.erasure.scrubber.scrub_notes("ann", ())
    assert prefixes() == [True, True], "no note was erased"
    note = uow.notes.get(noted(uow, session, "likes tea"))
    assert note is not None
    uow.erasure.scrubber.scrub_notes("ann", (note,))
    assert prefixes() == [False, True]
    assert uow.notes.versions(note.note_id)[0].content == FORGOTTEN
    uow.derived.put_note(replace(note, version=2), WRITTEN)
    put_prefixes()
    uow.erasure.scrubber.scrub_session(session)
    assert prefixes() == [False, True]


def test_delegated_work_that_has_not_started_is_erased_with_its_session(uow: UnitOfWork, session: Session) -> None:
    key = SessionKey.parse("agent:main:subagent:dm:t1-c1")
    row, _ = uow.inbox.accept(Inbound(key, "ann", "find my secret"), 1.0)
    uow.erasure.scrubber.scrub_session(session.replace(key=key))
    stored = uow.inbox.get(row.id)
    assert stored is not None
    assert (stored.inbound.text, stored.state) == (FORGOTTEN, InboxState.SET_ASIDE)


def test_a_review_that_has_read_forgotten_text_writes_no_note(uow: UnitOfWork, session: Session) -> None:
    note = NoteVersion("n1", 1, "ann", NoteTarget.USER, NoteAction.ADD, "likes tea", session.id, None, 1.0)
    uow.erasure.add_tombstone("session", "s0", "ann", 1.0)
    with pytest.raises(Outdated, match="try again"):
        uow.derived.put_note(note, NoteSource(forget_count=0))
    uow.derived.put_note(note, NoteSource(forget_count=1))
    assert len(uow.notes.versions("n1")) == 1


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


@pytest.mark.parametrize(
    ("forgotten", "note", "text", "erased"),
    [
        (("tea", "green tea"), "I drink green tea", "green tea and other tea", "green tea and other tea"),
        (("tea", "green tea"), "I drink tea", "green tea and other tea", f"{FORGOTTEN} and other tea"),
        (("tea time", "green tea"), "I drink green tea", "green tea time", f"green {FORGOTTEN}"),
        (("tea time", "green tea"), "at tea time", "green tea time", f"{FORGOTTEN} time"),
        (("tea", "Tea"), "I drink tea", "more Tea, more tea", "more Tea, more tea"),
    ],
)
def test_overlapping_facts_are_each_kept_only_if_they_were_noted_again(
    uow: UnitOfWork, forgotten: tuple[str, ...], note: str, text: str, erased: str
) -> None:
    for fact in forgotten:
        uow.erasure.add_tombstone(
            "fact", fact_identity("ann", fact), "ann", 1.0, uow.erasure.scrubber.marks("ann", fact)
        )
    assert uow.erasure.erase_facts_not_noted_again(text, "ann", [note]) == erased


def noted(uow: UnitOfWork, session: Session, text: str) -> str:
    uow.derived.put_note(
        NoteVersion("n1", 1, session.owner, NoteTarget.USER, NoteAction.ADD, text, session.id, None, 1.0), WRITTEN
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
