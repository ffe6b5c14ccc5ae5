"""Updates that are kept for a retry."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from everthread.domain.model import FORGOTTEN, NoteAction, NoteTarget, NoteVersion
from everthread.domain.pairing import PairedAccount
from everthread.store import failed_updates
from everthread.store.derived_text import WRITTEN
from everthread.store.failed_updates import FailedUpdate
from everthread.store.unit_of_work import UnitOfWork

UPDATE = FailedUpdate("fake", "bot", "7", "42", "ann", '{"text":"my \\"secret\\" hive"}', "KeyError", 1, 10.0, 70.0)
NOTE = NoteVersion("n", 1, "ann", NoteTarget.USER, NoteAction.ADD, '"secret" hive', "s", None, 1.0)


def test_an_update_is_kept_once(uow: UnitOfWork) -> None:
    uow.failed_updates.add(UPDATE)
    uow.failed_updates.add(replace(UPDATE, attempts=5))
    [kept] = uow.failed_updates.newest(10)
    assert kept == replace(UPDATE, id=kept.id)
    nameless = replace(UPDATE, update_id="")
    uow.failed_updates.add(nameless)
    uow.failed_updates.add(nameless)
    assert len(uow.failed_updates.newest(10)) == 3, "without an id, two updates can't be told apart"


def test_only_the_newest_updates_are_kept(uow: UnitOfWork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_updates, "KEPT_MAX", 2)
    for number in range(4):
        uow.failed_updates.add(replace(UPDATE, update_id=str(number)))
    assert [update.update_id for update in uow.failed_updates.newest(10)] == ["3", "2"]


def test_an_update_is_due_after_its_pause_or_at_a_start(uow: UnitOfWork) -> None:
    uow.failed_updates.add(UPDATE)
    assert uow.failed_updates.due(69.0, 10) == ()
    [due] = uow.failed_updates.due(70.0, 10)
    uow.failed_updates.record_failure(due.id, "ValueError", 200.0)
    assert uow.failed_updates.due(199.0, 10) == ()
    uow.failed_updates.make_due(100.0)
    [again] = uow.failed_updates.due(100.0, 10)
    assert (again.problem, again.attempts) == ("ValueError", 2)
    uow.failed_updates.remove(again.id)
    assert uow.failed_updates.newest(10) == ()


def test_a_forgotten_fact_is_erased_from_kept_updates(uow: UnitOfWork) -> None:
    uow.failed_updates.add(UPDATE)
    uow.failed_updates.add(replace(UPDATE, update_id="8", owner="bob"))
    uow.derived.put_note(NOTE, WRITTEN)
    uow.erasure.scrubber.scrub_fact(NOTE.note_id, "ann")
    others, hers = uow.failed_updates.newest(10)
    assert hers.content == f'{{"text":"my {FORGOTTEN}"}}'
    assert others.content == UPDATE.content


def test_a_forgotten_person_has_no_kept_updates(uow: UnitOfWork) -> None:
    uow.access.add_guest(PairedAccount("fake", "43", "ann", "Ann", 1.0))
    for update_id, user, owner in (("1", "42", "ann"), ("2", "43", "fake:43"), ("3", "44", "fake:44")):
        uow.failed_updates.add(replace(UPDATE, update_id=update_id, user=user, owner=owner))
    uow.erasure.scrubber.scrub_owner("ann")
    assert [update.update_id for update in uow.failed_updates.newest(10)] == ["3"]
