"""Background reviews: their requests, tools, limits and retries, and their isolation from transcripts and providers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, until

from everthread.agent.events import Reviewed as ReviewedEvent
from everthread.agent.review import ATTEMPTS_MAX, COOL_DOWN_S
from everthread.config.schema import ReviewSettings
from everthread.domain.boundary import New, Rewind
from everthread.domain.errors import DiskFull, ModelRefused
from everthread.domain.model import NoteAction, NoteTarget, NoteVersion, SessionKey, SessionKind, ToolCall
from everthread.domain.review_window import ReviewWindow
from everthread.domain.spend import Price
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange
from everthread.ports.model import Request, Traits
from everthread.ports.tools import ToolUse
from everthread.store.reviews import Reviews

EVERY = 3
REVIEW = "[A review."


def is_review(request: Request) -> bool:
    return any(REVIEW in message.content for message in request.tail)


def note(text: str, call: str = "c1", **more: str) -> ToolCall:
    return ToolCall(call, "memory", json.dumps({"action": "add", "target": "user", "content": text} | more))


class Reviewed(FakeModel):
    """Model that answers messages with `fine`, and reviews with the given lines."""

    def __init__(self, *lines: object, **more: Any) -> None:
        self.left = list(lines) or ["done"]
        super().__init__([self._line], **more)
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()

    def _line(self, request: Request) -> object:
        if not is_review(request):
            return "fine"
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    async def stream(self, request: Request) -> Any:
        if is_review(request):
            self.reached.set()
            await self.gate.wait()
        async for part in super().stream(request):
            yield part

    @property
    def reviews(self) -> list[Request]:
        return [request for request in self.requests if is_review(request)]


class NotesFixture(AgentFixture):
    def __init__(self, folder: Path, model: FakeModel, *providers: object, **more: Any) -> None:
        more.setdefault("review", ReviewSettings(every_turns=EVERY))
        super().__init__(folder, model, *providers, **more)

    async def talk(self, *texts: str, key: SessionKey = CLI) -> str:
        for text in texts:
            await self.ask(text, key)
        return (await self.at(key)).session_id

    async def idle(self) -> None:
        await until(lambda: not self.reviewer.busy, "the review never ends")

    async def notes(self) -> list[NoteVersion]:
        return list(await self.store.read(lambda uow: uow.notes.current(ME, NoteTarget.USER)))

    async def states(self, session_id: str) -> list[tuple[int, int, str]]:
        rows = await self.store.read(lambda uow: uow.reviews.of_session(session_id))
        return [(row.window.from_turn, row.window.to_turn, row.state.value) for row in rows]


async def test_a_review_repeats_the_conversations_request_and_appends_its_instruction(
    tmp_path: Path,
) -> None:
    model = Reviewed(note("sails"), "done")
    async with NotesFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        session = await core.talk("one", "two", "three")
        await core.idle()
        await core.talk("four")
        first, second = model.reviews
        live = model.requests[-1]
        assert first.head == second.head == live.head
        assert live.history == first.history == second.history
        assert second.tail[: len(first.tail)] == first.tail
        assert first.recall == ""
        assert await core.states(session) == [(1, 3, "done")]
        prefixes = await core.store.read(lambda uow: uow.turns.prefix_number(session))
        assert prefixes == 1


async def test_a_review_whose_end_could_not_be_stored_is_ended_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process may claim the review while its process lives."""

    def full(*args: Any) -> None:
        raise DiskFull("no room")

    model = Reviewed(note("sails"), "done")
    async with NotesFixture(tmp_path, model) as core:
        with monkeypatch.context() as patch:
            patch.setattr(Reviews, "end", full)
            session = await core.talk("one", "two", "three")
            await core.idle()
        assert await core.states(session) == [(1, 3, "running")]
        core.agent.start_reviews()
        await core.idle()
        assert await core.states(session) == [(1, 3, "done")]
        assert len(model.reviews) == 2


async def test_a_review_has_the_same_head_after_a_change_of_tools_and_of_the_process(tmp_path: Path) -> None:
    model = Reviewed("done")
    async with NotesFixture(tmp_path, model, review=ReviewSettings(every_turns=0)) as core:
        session = await core.talk("one", "two")
        live = model.requests[-1]
    async with NotesFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        await core.lifecycle.cross(CLI, New(), owner=ME)
        core.agent.start_reviews()
        await core.idle()
        assert [request.head for request in model.reviews] == [live.head]
        assert model.reviews[0].history.startswith(live.history)
        assert await core.states(session) == [(1, 2, "done")]


async def test_a_review_is_in_no_transcript_and_is_delivered_to_no_provider_as_a_turn(tmp_path: Path) -> None:
    diary = AsyncDiary()
    model = Reviewed(note("sails"), "hidden words")
    async with NotesFixture(tmp_path, model, diary) as core:
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert [turn.user_text for turn in await core.turns(session)] == ["one", "two", "three"]
        await core.talk("four")
        await until(lambda: "four" in diary.book.words())
        hooks = [(call.hook, call.text) for call in diary.book.effects]
        assert [text for hook, text in hooks if hook == "sync_turn"] == ["one", "two", "three", "four"]
        assert ("on_memory_write", "sails") in hooks
        assert REVIEW not in str(diary.book.effects)
        assert "hidden words" not in str(diary.book.effects)
        assert not any(REVIEW in str(event) or "hidden words" in str(event) for event in core.heard)
        hits = await core.store.read(lambda uow: uow.search.search(ME, "hidden", limit=5))
        assert hits == ()


async def test_notes_of_a_review_name_its_turns_and_its_session(tmp_path: Path) -> None:
    model = Reviewed(note("sails"), "done")
    model.gate.clear()
    async with NotesFixture(tmp_path, model) as core:
        old = await core.talk("one", "two", "three")
        await model.reached.wait()
        await core.lifecycle.cross(CLI, New(), owner=ME)
        new = await core.talk("hello")
        model.gate.set()
        await until(lambda: model.left == ["done"])
        await core.idle()
        (written,) = await core.notes()
        assert (written.session_id, written.turn_id) == (old, "review-1-3")
        assert new != old
        assert await core.states(new) == []


async def test_turns_left_at_the_close_are_reviewed_in_the_closed_session(tmp_path: Path) -> None:
    model = Reviewed(note("sails"), "done")
    async with NotesFixture(tmp_path, model) as core:
        old = await core.talk("one", "two")
        await core.lifecycle.cross(CLI, New(), owner=ME)
        await core.talk("hello")
        await core.idle()
        (written,) = await core.notes()
        assert (written.session_id, written.turn_id) == (old, "review-1-2")
        assert "hello" not in model.reviews[0].history.decode()


async def test_a_reply_does_not_wait_for_a_review(tmp_path: Path) -> None:
    model = Reviewed("done")
    model.gate.clear()
    async with NotesFixture(tmp_path, model) as core:
        await core.talk("one", "two", "three")
        await model.reached.wait()
        async with asyncio.timeout(5):
            await core.talk("four", "five")
        assert core.reviewer.busy


async def test_tools_other_than_memory_and_skills_are_refused(tmp_path: Path) -> None:
    ran: list[str] = []

    async def rm(arguments: Mapping[str, Any], use: ToolUse) -> str:
        ran.append(use.turn_id)
        return "gone"

    skill = {"name": "knots", "description": "How to tie knots.", "body": "Over, under, through."}
    calls = (ToolCall("a", "rm", "{}"), ToolCall("b", "skill_write", json.dumps(skill)), note("sails", "c"))
    model = Reviewed(calls, "done")
    deadly = tool("rm", rm)
    async with NotesFixture(tmp_path, model, tools=(deadly,), allowed=frozenset({"rm"})) as core:
        core.extra = (deadly,)
        await core.talk("one", "two", "three")
        await core.idle()
        assert ran == []
        results = [message.content for message in model.reviews[-1].tail if message.role.value == "tool"]
        assert results[0] == (
            "Error: 'rm' was not run: a review has memory, skill_list, skill_view, skill_write and no other tool"
        )
        assert [n.content for n in await core.notes()] == ["sails"]
        assert "Over, under" in (tmp_path / "skills" / "knots" / "SKILL.md").read_text()


async def test_a_review_ends_after_its_maximum_of_steps(tmp_path: Path) -> None:
    model = Reviewed(ToolCall("a", "skill_list", "{}"))
    async with NotesFixture(tmp_path, model, review=ReviewSettings(every_turns=EVERY, iterations=4)) as core:
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert len(model.reviews) == 4
        assert await core.states(session) == [(1, 3, "done")]


async def test_a_review_has_its_own_spending_limit_and_its_cost_is_recorded(tmp_path: Path) -> None:
    model = Reviewed(ToolCall("a", "skill_list", "{}"))
    async with NotesFixture(tmp_path, model, review=ReviewSettings(every_turns=EVERY, spend=0.05)) as core:
        core.choices = [model.choice(price=Price(0.0, 20.0))]
        model.usage = model.usage.__class__(100, 1000)
        session = await core.talk("one", "two", "three")
        await core.idle()
        # Each call reserves at most 0.02 and spends as much.
        assert len(model.reviews) == 2
        assert await core.states(session) == [(1, 3, "waiting")]
        ref = await core.at(CLI)
        spent = await core.store.read(lambda uow: uow.spend.of_turn(ref, "review-1-3", 0.0))
        assert spent == pytest.approx(0.04)
        await core.talk("four")
        await core.idle()
        assert len(model.reviews) == 2


async def test_two_processes_review_a_window_once(tmp_path: Path) -> None:
    models = [Reviewed("done"), Reviewed("done")]
    async with NotesFixture(tmp_path, models[0]) as one, NotesFixture(tmp_path, models[1]) as two:
        session = await one.talk("one", "two")
        one.agent.start_reviews()
        two.agent.start_reviews()
        for number in range(6):
            await (one if number % 2 else two).ask(f"turn {number}")
        one.agent.start_reviews()
        two.agent.start_reviews()
        await one.idle()
        await two.idle()
        await until(lambda: len(models[0].reviews) + len(models[1].reviews) >= 2)
        assert len(models[0].reviews) + len(models[1].reviews) == 2
        assert await one.states(session) == [(1, 3, "done"), (4, 6, "done")]


async def test_an_unfinished_review_is_done_by_the_next_process(tmp_path: Path) -> None:
    model = Reviewed("never comes")
    model.gate.clear()
    async with NotesFixture(tmp_path, model) as core:
        session = await core.talk("one", "two", "three")
        await model.reached.wait()
    model = Reviewed(note("sails"), "done")
    async with NotesFixture(tmp_path, model) as core:
        assert await core.states(session) == [(1, 3, "waiting")]
        core.agent.start_reviews()
        await core.idle()
        assert await core.states(session) == [(1, 3, "done")]
        assert len(await core.notes()) == 1


@pytest.mark.parametrize("how", ["rewind", "forget"])
async def test_a_rewind_or_a_forget_stops_a_review_before_it_writes(tmp_path: Path, how: str) -> None:
    model = Reviewed(note("sails"), "done")
    model.gate.clear()
    async with NotesFixture(tmp_path, model) as core:
        session = await core.talk("one", "two", "three")
        await model.reached.wait()
        if how == "rewind":
            await core.lifecycle.cross(CLI, Rewind(1), owner=ME)
        else:
            await core.lifecycle.forget(ForgetSession(session), owner=ME)
        model.gate.set()
        await core.idle()
        assert await core.notes() == []
        assert len(model.reviews) == 1
        assert await core.states(session) == ([(1, 3, "stopped")] if how == "rewind" else [])


async def test_a_forgotten_fact_restarts_the_review_without_it(tmp_path: Path) -> None:
    model = Reviewed(note("likes tea"), note("sails", "c2"), "done")
    model.gate.clear()
    async with NotesFixture(tmp_path, model) as core:
        change = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea")
        known = await core.lifecycle.write_note(change, owner=ME)
        session = await core.talk("one", "two", "three")
        await model.reached.wait()
        await core.lifecycle.forget(ForgetFact(known.note_id), owner=ME)
        model.gate.set()
        await core.idle()
        assert [n.content for n in await core.notes()] == ["sails"]
        assert await core.states(session) == [(1, 3, "done")]
        assert "likes tea" not in model.sent()


async def test_a_failed_review_is_retried_later_and_given_up_in_the_end(tmp_path: Path) -> None:
    model = Reviewed(ModelRefused("no"))
    async with NotesFixture(tmp_path, model) as core:
        session = await core.talk("one", "two", "three")
        await core.idle()
        for attempt in range(1, ATTEMPTS_MAX + 3):
            assert len(model.reviews) == min(attempt, ATTEMPTS_MAX)
            core.clock.advance(ATTEMPTS_MAX * COOL_DOWN_S)
            core.agent.start_reviews()
            await core.idle()
        assert await core.states(session) == [(1, 3, "failed")]
        incidents = await core.store.read(lambda uow: uow.incidents.newest(5))
        assert [i.source for i in incidents] == ["review"]


async def test_a_model_without_tools_gets_no_review(tmp_path: Path) -> None:
    model = Reviewed("done", given_traits=Traits(tools=False))
    async with NotesFixture(tmp_path, model) as core:
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert model.reviews == []
        assert await core.states(session) == [(1, 3, "done")]


async def test_scheduled_sessions_are_not_reviewed(tmp_path: Path) -> None:
    model = Reviewed("done")
    async with NotesFixture(tmp_path, model) as core:
        await core.lifecycle.cross(CLI, New(kind=SessionKind.CRON), owner=ME)
        await core.talk("one", "two", "three", "four")
        await core.idle()
        assert model.reviews == []


async def test_a_review_near_the_limit_sees_the_notes_and_is_asked_to_condense(tmp_path: Path) -> None:
    merge = note("likes tea, green and black", "c2", action="replace", old_text="green")
    model = Reviewed(note("x" * 60), merge, "done")
    async with NotesFixture(tmp_path, model) as core:
        core.note_limits[NoteTarget.USER] = 60
        for text in ("likes green tea", "likes black tea"):
            await core.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, text), owner=ME)
        await core.talk("one", "two", "three", key=TELEGRAM)
        await core.idle()
        results = [message.content for message in model.reviews[-1].tail if message.role.value == "tool"]
        assert results[0].startswith("not noted yet.")
        assert "- likes green tea\n- likes black tea" in results[0]
        first = (await core.notes())[0]
        assert (first.content, first.version, first.turn_id) == ("likes tea, green and black", 2, "review-1-3")


async def test_listeners_get_an_event_only_for_reviews_that_wrote_something(tmp_path: Path) -> None:
    skill = {"name": "knots", "description": "How to tie knots.", "body": "Over, under, through."}
    replaced = note("sails a boat", "c3", action="replace", old_text="sails")
    removed = note("", "c4", action="remove", old_text="sails")
    calls = (note("sails"), note("sails", "c2"), ToolCall("b", "skill_write", json.dumps(skill)), replaced, removed)
    model = Reviewed(calls, "done", "done")
    heard: list[ReviewedEvent] = []
    async with NotesFixture(tmp_path, model) as core:
        core.agent.start_reviews(heard.append)
        session = await core.talk("one", "two", "three")
        await core.idle()
        (event,) = heard
        assert (event.ref.session_id, event.ref.owner, event.window) == (session, ME, ReviewWindow(1, 3))
        assert event.wrote == ('"sails"', "the skill knots", '"sails a boat"', "a note removed")
        await core.talk("four", "five", "six")
        await core.idle()
        assert heard == [event], "a review that wrote nothing sends no event"


async def test_the_writes_of_a_failed_review_are_reported(tmp_path: Path) -> None:
    model = Reviewed(note("sails"), ModelRefused("no"))
    heard: list[ReviewedEvent] = []

    def hear(event: ReviewedEvent) -> None:
        heard.append(event)
        raise RuntimeError("a face that fails")

    async with NotesFixture(tmp_path, model) as core:
        core.agent.start_reviews(hear)
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert [event.wrote for event in heard] == [('"sails"',)]
        assert await core.states(session) == [(1, 3, "waiting")]


async def test_an_internal_error_does_not_stop_later_reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Reviewed("done")
    async with NotesFixture(tmp_path, model) as core:
        take, faults = core.lifecycle.claim_next_review, [RuntimeError("a bug")]

        async def faulty() -> Any:
            if faults:
                raise faults.pop()
            return await take()

        monkeypatch.setattr(core.lifecycle, "claim_next_review", faulty)
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert await core.states(session) == [(1, 3, "waiting")]
        await core.talk("four")
        await core.idle()
        assert await core.states(session) == [(1, 3, "done")]


async def test_duplicate_or_contradicting_notes_are_merged_with_origin_and_undo(
    tmp_path: Path,
) -> None:
    merged = note("likes tea, green and black", "c1", action="replace", old_text="green")
    removed = note("", "c2", action="remove", old_text="likes black tea")
    corrected = note("lives in Porto", "c3", action="replace", old_text="Lisbon")
    model = Reviewed((merged, removed, corrected), "done")
    async with NotesFixture(tmp_path, model) as core:
        first = await core.talk("one")
        green, black, lisbon = [
            (await core.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, text), owner=ME, ref=ref))
            for text, ref in (
                ("likes green tea", await core.at(CLI)),
                ("likes black tea", None),
                ("lives in Lisbon", None),
            )
        ]
        await core.talk("two", "I have moved to Porto")
        await core.idle()
        assert "- likes green tea\n- likes black tea\n- lives in Lisbon" in model.reviews[0].tail[0].content, (
            "the review sees the notes"
        )
        assert [n.content for n in await core.notes()] == ["likes tea, green and black", "lives in Porto"]
        history = await core.store.read(lambda uow: [uow.notes.versions(n.note_id) for n in (green, black, lisbon)])
        for before, after in history:
            assert (after.session_id, after.turn_id) == (first, "review-1-3"), "notes name the reviewed turns"
            assert before in (green, black, lisbon), "the previous version and its origin are kept"
        for versions in history:
            last = versions[-1]
            await core.lifecycle.undo_note(last.note_id, last.version, owner=ME)
        assert [n.content for n in await core.notes()] == ["likes green tea", "likes black tea", "lives in Lisbon"]


async def test_a_note_that_does_not_fit_is_added_once_the_review_has_condensed(tmp_path: Path) -> None:
    wanted = note("sails a boat called Bruno", "c1")
    condensed = note("likes tea", "c2", action="replace", old_text="green")
    model = Reviewed(wanted, condensed, note("", "c3", action="remove", old_text="likes black tea"), wanted, "done")
    async with NotesFixture(tmp_path, model) as core:
        core.note_limits[NoteTarget.USER] = 40
        for text in ("likes green tea", "likes black tea"):
            await core.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, text), owner=ME)
        session = await core.talk("one", "two", "three")
        await core.idle()
        assert [n.content for n in await core.notes()] == ["likes tea", "sails a boat called Bruno"]
        assert await core.states(session) == [(1, 3, "done")]
