"""Note compaction: the request, the validation of the answer, and compaction during a review."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, until

from everthread.agent.events import Reviewed
from everthread.agent.note_compaction import parse_changes, request_text
from everthread.config.schema import ReviewSettings
from everthread.domain.errors import ModelRefused, NotCondensed
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, Role, ToolCall
from everthread.domain.spend import Price
from everthread.lifecycle import NoteChange
from everthread.ports.model import Request

LIMIT = 60
NEW = "sails a boat called Bruno"
MERGED = "1, 2: likes tea, green and black"


def noted(number: int, text: str) -> NoteVersion:
    return NoteVersion(f"n{number}", 1, ME, NoteTarget.USER, NoteAction.ADD, text, "s", "t", 0.0)


TEA = (noted(1, "likes green tea very much"), noted(2, "likes black tea very much"), noted(3, "is 40"))


# --- Request and answer ----------------------------------------------------------------------------------------------


def test_the_request_states_the_limit_and_contains_every_note() -> None:
    text = request_text(TEA, 20, "it was too long")
    assert "55 characters, and may have 20" in text
    assert "[1] likes green tea very much\n[2] likes black tea very much\n[3] is 40" in text
    assert "could not be used: it was too long" in text
    assert "last answer" not in request_text(TEA, 20)


@pytest.mark.parametrize(
    "answer",
    [
        "1, 2: likes tea\n3: is 40",
        "Here you are:\n- [1+2]: likes tea\n- [3]: is 40\nShorter now!",
        "3. is 40\n\n2 & 1) likes tea",
    ],
)
def test_related_notes_are_merged_and_the_others_stay_unchanged(answer: str) -> None:
    replaced, removed = parse_changes(answer, TEA, 40)
    assert (replaced.action, replaced.note_id, replaced.content) == (NoteAction.REPLACE, "n1", "likes tea")
    assert (removed.action, removed.note_id) == (NoteAction.REMOVE, "n2")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "no line begins"),
        ("I can't do that.", "no line begins"),
        ("1: likes tea\n3: is 40", "these do not: 2"),
        ("1, 2: likes tea\n2, 3: is 40", "these do not: 2"),
        ("1, 2: likes tea\n3: is 40\n4: is rich", "these do not: 4"),
        ("1, 2: likes tea, both the green and the black\n3: is 40", "44 characters; at most 40"),
        ("1: likes green tea very much\n2: likes black tea very much\n3: is 40", "55 characters"),
    ],
)
def test_an_answer_that_drops_a_note_or_saves_too_little_is_rejected(answer: str, why: str) -> None:
    with pytest.raises(NotCondensed, match=why):
        parse_changes(answer, TEA, 40)


@given(st.text(alphabet="123,:[]&+.)- \nab\u0661", max_size=80))
def test_any_answer_is_rejected_or_yields_changes_within_the_limit(answer: str) -> None:
    try:
        changes = parse_changes(answer, TEA, 40)
    except NotCondensed:
        return
    after = {note.note_id: note.content for note in TEA}
    for change in changes:
        after[change.note_id] = change.content
    assert sum(map(len, after.values())) <= 40
    kept = [change.note_id for change in changes if change.action is NoteAction.REPLACE]
    assert len(kept) == len(set(kept))


# --- Compaction during a review --------------------------------------------------------------------------------------


class Talker(FakeModel):
    """Model that answers messages with `fine`, and reviews with the given lines."""

    def __init__(self, *lines: object) -> None:
        self._left = list(lines)
        super().__init__([self._line])

    def _line(self, request: Request) -> object:
        if not any("[A review." in message.content for message in request.tail):
            return "fine"
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


class Both(Talker):
    """Model that answers compaction requests as well."""

    def _line(self, request: Request) -> object:
        return MERGED if "=== The notes ===" in request.tail[0].content else super()._line(request)


class NotesFixture(AgentFixture):
    """Agent whose notes are nearly full: two about tea."""

    def __init__(self, folder: Path, model: FakeModel, condenser: FakeModel | None, **more: Any) -> None:
        super().__init__(folder, model, summariser=condenser, review=ReviewSettings(every_turns=1), **more)
        self.told: list[Reviewed] = []

    async def reviewed(
        self, texts: tuple[str, ...] = ("likes green tea very much", "likes black tea very much")
    ) -> str:
        self.note_limits[NoteTarget.USER] = LIMIT
        for text in texts:
            await self.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, text), owner=ME)
        self.agent.start_reviews(self.told.append)
        await self.ask("hello")
        await until(lambda: not self.reviewer.busy, "the review never ends")
        return (await self.at(CLI)).session_id

    async def notes(self) -> list[NoteVersion]:
        return list(await self.store.read(lambda uow: uow.notes.current(ME, NoteTarget.USER)))

    async def incidents(self) -> list[str]:
        return [i.text for i in await self.store.read(lambda uow: uow.incidents.newest(9)) if i.source == "review"]


def add(text: str = NEW, call: str = "c1") -> ToolCall:
    return ToolCall(call, "memory", json.dumps({"action": "add", "target": "user", "content": text}))


async def test_a_note_that_does_not_fit_triggers_compaction(tmp_path: Path) -> None:
    model, condenser = Talker(add(), "done"), FakeModel([MERGED])
    async with NotesFixture(tmp_path, model, condenser) as core:
        session = await core.reviewed()
        assert [note.content for note in await core.notes()] == ["likes tea, green and black", NEW]
        (request,) = condenser.requests
        assert [message.role for message in request.tail] == [Role.USER], "one user message and no tools"
        assert json.loads(request.head)[1:] == ["", []]
        (event,) = core.told
        assert event.wrote == ("2 notes condensed to 1, to make room", f'"{NEW}"')
        assert event.missing == ()
        marks = {(note.session_id, note.turn_id) for note in await core.notes()}
        assert marks == {(session, "review-1-1")}, "notes name the reviewed turns"
        assert await core.incidents() == []


async def test_each_change_of_a_compaction_can_be_undone(tmp_path: Path) -> None:
    async with NotesFixture(tmp_path, Talker(add(), "done"), FakeModel([MERGED])) as core:
        await core.reviewed()
        log = await core.store.read(lambda uow: uow.notes.history(ME, 9))
        changes = [version for version in log if version.turn_id == "review-1-1" and version.content != NEW]
        assert {version.action for version in changes} == {NoteAction.REPLACE, NoteAction.REMOVE}
        for version in changes:
            await core.lifecycle.undo_note(version.note_id, version.version, owner=ME)
        texts = {note.content for note in await core.notes()}
        assert texts == {"likes green tea very much", "likes black tea very much", NEW}


async def test_the_model_of_the_conversation_compacts_without_an_auxiliary_model(tmp_path: Path) -> None:
    async with NotesFixture(tmp_path, Both(add(), "done"), None) as core:
        await core.reviewed()
        assert NEW in [note.content for note in await core.notes()]


async def test_a_rejected_answer_is_requested_once_more_with_the_problem(tmp_path: Path) -> None:
    condenser = FakeModel(["1: likes tea", MERGED])
    async with NotesFixture(tmp_path, Talker(add(), "done"), condenser) as core:
        await core.reviewed()
        assert NEW in [note.content for note in await core.notes()]
        assert "these do not: 2" in condenser.requests[1].tail[0].content


@pytest.mark.parametrize("answers", [["no"], [ModelRefused("no")], ["1, 2: " + "x" * 50]])
async def test_notes_that_do_not_fit_after_a_failed_compaction_are_reported(tmp_path: Path, answers: list[Any]) -> None:
    model = Talker((add(), add("another one that is long", "c2")), "done")
    condenser = FakeModel(answers)
    async with NotesFixture(tmp_path, model, condenser) as core:
        await core.reviewed()
        results = [m.content for m in model.requests[-1].tail if m.role is Role.TOOL]
        assert all(result.startswith("not noted yet.") for result in results)
        assert "Condense before you note more" in results[0]
        assert [n.content for n in await core.notes()] == ["likes green tea very much", "likes black tea very much"]
        (event,) = core.told
        assert event.missing == (f'"{NEW}"', '"another one that is long"')
        assert f'a review could not add: "{NEW}"' in event.text
        assert "memory.user_chars" in event.text
        assert "Review noted" not in event.text
        (incident,) = await core.incidents()
        assert NEW in incident
        assert len(condenser.requests) <= 2, "a failed compaction is not repeated for the next note"


async def test_a_note_that_fits_after_the_reviews_own_edits_is_not_reported_as_missing(tmp_path: Path) -> None:
    shorter = {"action": "replace", "target": "user", "old_text": "green", "content": "likes tea"}
    lines = (add(), ToolCall("c2", "memory", json.dumps(shorter)), add("sails", "c3"), "done")
    async with NotesFixture(tmp_path, Talker(*lines), FakeModel(["no"])) as core:
        await core.reviewed()
        assert [n.content for n in await core.notes()] == ["likes tea", "likes black tea very much", "sails"]
        assert core.told[0].missing == ()
        assert await core.incidents() == []


async def test_concurrent_changes_of_notes_are_not_overwritten(tmp_path: Path) -> None:
    class Slow(FakeModel):
        async def stream(self, request: Request) -> Any:
            if not self.requests:
                change = NoteChange(NoteAction.ADD, NoteTarget.USER, "is 40")
                await core.lifecycle.write_note(change, owner=ME)
            async for part in super().stream(request):
                yield part

    async with NotesFixture(tmp_path, Talker(add(), "done"), Slow([MERGED])) as core:
        await core.reviewed()
        texts = [note.content for note in await core.notes()]
        assert texts == ["likes green tea very much", "likes black tea very much", "is 40"]
        assert core.told[0].missing == (f'"{NEW}"',)


async def test_the_cost_of_compaction_is_charged_to_the_review(tmp_path: Path) -> None:
    async def spent(folder: Path, *lines: object) -> float:
        model = Both(*lines)
        async with NotesFixture(folder, model, None) as core:
            core.choices = [model.choice(price=Price(1.0, 1.0))]
            await core.reviewed()
            ref = await core.at(CLI)
            return await core.store.read(lambda uow: uow.spend.of_turn(ref, "review-1-1", 0.0))

    without, with_it = await spent(tmp_path / "a", add("sails"), "done"), await spent(tmp_path / "b", add(), "done")
    assert with_it == pytest.approx(without * 3 / 2), "three calls instead of two"
