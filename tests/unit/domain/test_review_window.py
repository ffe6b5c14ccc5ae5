"""Review windows: their turns, schedule and states."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.boundary import Branch, Compress, Expire, New, Reset, Resume, Rewind
from everthread.domain.errors import Fenced
from everthread.domain.model import NoteAction, NoteTarget, SessionKind
from everthread.domain.reset_policy import ResetPolicy
from everthread.domain.review_window import Review, ReviewState, ReviewWindow, due_window, remaining_window
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange


@pytest.mark.parametrize(
    ("reviewed_to", "shown", "every", "window"),
    [
        (0, range(1, 10), 10, None),
        (0, range(1, 11), 10, ReviewWindow(1, 10)),
        (10, range(10, 20), 10, None),
        (10, range(11, 21), 10, ReviewWindow(11, 20)),
        (0, (1, 2, 5), 3, ReviewWindow(1, 5)),
        (4, (), 3, None),
        (0, range(1, 100), 0, None),
    ],
)
def test_a_window_is_full_after_the_given_number_of_visible_turns(
    reviewed_to: int, shown: range, every: int, window: ReviewWindow | None
) -> None:
    assert due_window(reviewed_to, tuple(shown), every) == window


def test_the_remaining_window_ends_with_the_newest_visible_turn() -> None:
    assert remaining_window(0, (3,)) == ReviewWindow(1, 3)
    assert remaining_window(3, (3,)) is None
    assert remaining_window(5, ()) is None


def test_a_mark_names_its_window_and_no_turn_id_parses_as_a_mark() -> None:
    assert ReviewWindow.from_mark(ReviewWindow(3, 12).mark) == ReviewWindow(3, 12)
    for turn_id in (None, "", "01JZ8Q7M3N5P6R8S9T0V1W2X3Y", "review-3", "review-a-b", "xreview-1-2"):
        assert ReviewWindow.from_mark(turn_id) is None


class ReviewingFixture(CoreFixture):
    """A core that schedules a review after every third turn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, review_every=3)

    async def say(self, *texts: str) -> str:
        for text in texts:
            await self.turn(CLI, text)
        return (await self.at(CLI)).session_id

    async def windows(self, session_id: str) -> list[tuple[int, int, str]]:
        rows = await self.store.read(lambda uow: uow.reviews.of_session(session_id))
        return [(row.window.from_turn, row.window.to_turn, row.state.value) for row in rows]

    async def take(self) -> Review | None:
        taken = await self.lifecycle.claim_next_review()
        return taken[0] if taken else None

    async def end(self, review: Review, state: ReviewState = ReviewState.DONE) -> None:
        await self.store.write(lambda uow: uow.reviews.end(review, state))


async def test_every_third_turn_and_the_rest_at_the_close_are_scheduled(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as core:
        session = await core.say("one", "two")
        assert await core.windows(session) == []
        await core.say("three", "four", "five")
        assert await core.windows(session) == [(1, 3, "waiting")]
        await core.lifecycle.cross(CLI, New(), owner=ME)
        assert await core.windows(session) == [(1, 3, "waiting"), (4, 5, "waiting")]
        await core.lifecycle.cross(CLI, Resume(session), owner=ME)
        await core.lifecycle.cross(CLI, Reset(), owner=ME)
        assert len(await core.windows(session)) == 2, "a reviewed turn is not reviewed again"


@pytest.mark.parametrize("how", ["reset", "resume", "branch", "expire", "compress", "exit"])
async def test_every_kind_of_close_schedules_the_remaining_turns(tmp_path: Path, how: str) -> None:
    async with ReviewingFixture(tmp_path) as core:
        other = await core.say("elsewhere")
        await core.lifecycle.cross(CLI, New(), owner=ME)
        session = await core.say("one", "two")
        assert await core.windows(session) == []
        boundaries = {
            "reset": Reset(),
            "resume": Resume(other),
            "branch": Branch(),
            "expire": Expire(ResetPolicy(idle_s=1.0), core.clock.now() + 10.0),
            "compress": Compress(session, 0, "## Goal\n- sail", 1),
        }
        if how == "exit":
            await core.lifecycle.suspend(close_memory=True)
        else:
            crossing = await core.lifecycle.cross(CLI, boundaries[how], owner=ME)
            assert crossing.refusal is None
        assert await core.windows(session) == [(1, 2, "waiting")]


async def test_a_suspend_without_a_close_schedules_nothing(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as core:
        session = await core.say("one", "two")
        await core.lifecycle.suspend()
        assert await core.windows(session) == []


async def test_inherited_turns_are_reviewed_in_the_parent(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as core:
        parent = await core.say("one", "two")
        await core.lifecycle.cross(CLI, Branch(), owner=ME)
        child = await core.say("three", "four", "five")
        assert await core.windows(parent) == [(1, 2, "waiting")]
        assert await core.windows(child) == [(3, 5, "waiting")]


@pytest.mark.parametrize("kind", [SessionKind.CRON, SessionKind.SUBAGENT])
async def test_scheduled_and_delegated_sessions_are_never_reviewed(tmp_path: Path, kind: SessionKind) -> None:
    async with ReviewingFixture(tmp_path) as core:
        await core.lifecycle.cross(CLI, New(kind=kind), owner=ME)
        session = await core.say("one", "two", "three", "four")
        await core.lifecycle.cross(CLI, New(kind=kind), owner=ME)
        assert await core.windows(session) == []


async def test_a_rewind_into_a_window_stops_it_and_the_next_window_covers_the_rest(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as core:
        session = await core.say("one", "two", "three")
        review = await core.take()
        assert review is not None
        await core.say("four")
        await core.lifecycle.cross(CLI, Rewind(1), owner=ME)
        assert await core.windows(session) == [(1, 3, "running")], "the hidden turn is outside the window"
        await core.lifecycle.cross(CLI, Rewind(1), owner=ME)
        assert await core.windows(session) == [(1, 3, "stopped")]
        await core.end(review)
        assert await core.windows(session) == [(1, 3, "stopped")]
        await core.say("five")
        assert await core.windows(session) == [(1, 3, "stopped"), (1, 5, "waiting")]


async def test_a_stopped_review_writes_no_note(tmp_path: Path) -> None:
    note = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea")
    async with ReviewingFixture(tmp_path) as core:
        await core.say("one", "two", "three")
        review = await core.take()
        await core.lifecycle.write_note(note, owner=ME, ref=await core.at(CLI), review=review)
        await core.lifecycle.cross(CLI, Rewind(1), owner=ME)
        with pytest.raises(Fenced):
            await core.lifecycle.write_note(note, owner=ME, ref=await core.at(CLI), review=review)


async def test_forgetting_a_fact_fences_its_reviews_and_a_session_loses_its_windows(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as core:
        note = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea")
        written = await core.lifecycle.write_note(note, owner=ME)
        session = await core.say("one", "two", "three")
        review = await core.take()
        await core.lifecycle.forget(ForgetFact(written.note_id), owner=ME)
        with pytest.raises(Fenced):
            await core.lifecycle.write_note(note, owner=ME, ref=await core.at(CLI), review=review)
        await core.lifecycle.forget(ForgetSession(session), owner=ME)
        assert await core.windows(session) == []


async def test_a_window_is_claimed_once_and_taken_over_from_a_dead_process(tmp_path: Path) -> None:
    async with ReviewingFixture(tmp_path) as one, ReviewingFixture(tmp_path) as two:
        session = await one.say("one", "two", "three")
        first = await one.take()
        assert first is not None
        assert await two.take() is None
        await one.store.write(lambda uow: uow.leases.end_process(one.holder))
        second = await two.take()
        assert second is not None
        assert (second.session_id, second.window) == (first.session_id, first.window)
        await one.end(first)
        assert await one.windows(session) == [(1, 3, "running")], "the former holder changes nothing"
        await two.end(second)
        assert await one.windows(session) == [(1, 3, "done")]
        assert await two.take() is None
