"""Full texts of log records in the store: bounded, under their owner, and gone when that is forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everthread.domain.model import (
    Cause,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Session,
    SessionKey,
    SessionKind,
)
from everthread.store import error_details
from everthread.store.derived_text import WRITTEN
from everthread.store.error_details import CHARS_MAX, KEPT_S_MAX, ErrorDetail
from everthread.store.unit_of_work import UnitOfWork


def add(uow: UnitOfWork, reference: str, session_id: str | None = None, owner: str = "", at: float = 2.0) -> None:
    text = f"it quotes {reference}"
    uow.error_details.add(ErrorDetail(at, reference, "everthread.agent", text, session_id, owner))


def kept(uow: UnitOfWork, *references: str) -> list[str]:
    return [each for each in references if uow.error_details.get(each)]


def test_a_text_belongs_to_the_owner_of_its_session(uow: UnitOfWork, session: Session) -> None:
    add(uow, "r1", session.id, "somebody else")
    add(uow, "r1", None, "bob")
    first, second = uow.error_details.get("r1")
    assert (first.session_id, first.owner, first.text) == (session.id, "ann", "it quotes r1")
    assert (second.session_id, second.owner) == (None, "bob")
    assert uow.error_details.get("r2") == ()


def test_texts_are_bounded_in_number_size_and_age(uow: UnitOfWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_details, "KEPT_MAX", 2)
    for number in range(4):
        add(uow, f"r{number}")
    assert kept(uow, "r0", "r1", "r2", "r3") == ["r2", "r3"]
    uow.error_details.add(ErrorDetail(3.0 + KEPT_S_MAX, "r4", "everthread", "x" * (CHARS_MAX + 1)))
    assert kept(uow, "r2", "r3", "r4") == ["r4"]
    assert len(uow.error_details.get("r4")[0].text) == CHARS_MAX


def test_forgetting_a_session_deletes_its_texts_and_those_that_may_quote_it(
    uow: UnitOfWork, session: Session, key: SessionKey
) -> None:
    uow.sessions.add(Session("s2", "bob", key, SessionKind.CHAT, Cause.NEW, 1.0))
    add(uow, "mine", session.id)
    add(uow, "of-me", None, "ann")
    add(uow, "of-nobody")
    add(uow, "before-it", at=0.5)
    add(uow, "bobs", "s2")
    add(uow, "of-bob", None, "bob")
    uow.erasure.scrubber.scrub_session(session)
    found = kept(uow, "mine", "of-me", "of-nobody", "before-it", "bobs", "of-bob")
    assert found == ["before-it", "bobs", "of-bob"]


def test_forgetting_a_person_deletes_their_texts_only(uow: UnitOfWork, session: Session) -> None:
    add(uow, "mine", session.id)
    add(uow, "of-me", None, "ann")
    add(uow, "of-bob", None, "bob")
    uow.erasure.scrubber.scrub_owner("ann")
    assert kept(uow, "mine", "of-me", "of-bob") == ["of-bob"]


def test_forgetting_a_fact_deletes_texts_of_its_owner_and_of_nobody_with_its_words(
    uow: UnitOfWork, session: Session
) -> None:
    version = NoteVersion("n1", 1, "ann", NoteTarget.USER, NoteAction.ADD, "the gate code", session.id, None, 1.0)
    uow.derived.put_note(version, WRITTEN)
    add(uow, "mine", session.id)
    texts = (("a", "", "quotes the gate code"), ("b", "", "disk full"), ("c", "bob", "the gate code"))
    for reference, owner, text in texts:
        uow.error_details.add(ErrorDetail(2.0, reference, "everthread", text, None, owner))
    uow.erasure.scrubber.scrub_fact("n1", "ann")
    assert kept(uow, "mine", "a", "b", "c") == ["b", "c"]


def test_a_text_that_arrives_after_its_session_or_person_was_forgotten_is_dropped(
    uow: UnitOfWork, session: Session
) -> None:
    uow.sessions.save(replace(session, forgotten_seq=1))
    uow.erasure.add_tombstone("owner", "bob", "bob", 1.0)
    uow.erasure.add_tombstone("session", "gone", "bob", 1.0)
    add(uow, "late", session.id)
    add(uow, "late", None, "bob", at=1.0)
    add(uow, "late", "a pruned session", "bob", at=0.5)
    add(uow, "late", "gone")
    assert uow.error_details.get("late") == ()


def test_texts_of_a_person_who_came_back_are_kept_until_the_next_request(uow: UnitOfWork) -> None:
    uow.erasure.add_tombstone("owner", "bob", "bob", 1.0)
    add(uow, "back", None, "bob", at=2.0)
    uow.erasure.add_tombstone("owner", "bob", "bob", 3.0)
    add(uow, "again", None, "bob", at=2.5)
    add(uow, "again-with-session", "a pruned session", "bob", at=2.5)
    assert kept(uow, "back", "again", "again-with-session") == ["back"]


def test_a_guest_with_many_errors_does_not_displace_the_texts_of_the_operator(
    uow: UnitOfWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_details, "KEPT_MAX", 6)
    for reference in ("r1", "r2"):
        add(uow, reference, None, "me")
    for number in range(20):
        add(uow, f"g{number}", None, f"guest{number % 2}")
    assert kept(uow, "r1", "r2") == ["r1", "r2"]
    assert kept(uow, *(f"g{number}" for number in range(20))) == ["g16", "g17", "g18", "g19"]


def test_a_guest_who_forgets_a_session_leaves_texts_of_nobody_that_do_not_name_them(
    uow: UnitOfWork, session: Session
) -> None:
    texts = ("disk full", f"no session {session.id}", f"lane {session.key} failed", "refused for ann")
    for number, text in enumerate(texts):
        uow.error_details.add(ErrorDetail(2.0, f"r{number}", "everthread", text))
    add(uow, "of-me", None, "ann")
    uow.erasure.scrubber.scrub_session(session, operator="me")
    assert kept(uow, "r0", "r1", "r2", "r3", "of-me") == ["r0"]
    uow.erasure.scrubber.scrub_session(session, operator="ann")
    assert kept(uow, "r0") == []


def test_a_text_that_arrives_late_does_not_quote_a_forgotten_fact(uow: UnitOfWork, session: Session) -> None:
    marks = uow.erasure.scrubber.marks("ann", "the gate code")
    uow.erasure.add_tombstone("fact", "f1", "ann", 1.0, marks)
    for session_id, owner in ((session.id, ""), (None, "ann"), (None, "")):
        uow.error_details.add(ErrorDetail(2.0, "r", "everthread", "bad: the gate code", session_id, owner))
    assert [each.text for each in uow.error_details.get("r")] == ["bad: [forgotten]"] * 3
