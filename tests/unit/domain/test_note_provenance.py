"""Forgetting a session removes its content from the notes of other sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import ME, TELEGRAM, AsyncDiary, CoreFixture

from everthread.domain.boundary import New
from everthread.domain.errors import Erased
from everthread.domain.model import FORGOTTEN, NoteAction, NoteTarget, NoteVersion, SessionRef
from everthread.domain.note_provenance import NoteRepair, plan_repair
from everthread.domain.review_window import ReviewState, ReviewWindow
from everthread.lifecycle import ForgetOwner, ForgetSession, NoteChange, NoteRewrite

ADD, REPLACE, REMOVE = NoteAction.ADD, NoteAction.REPLACE, NoteAction.REMOVE
S, R, T, U = "s", "r", "t", "u"
REVIEW = "review-1-3"


def written(*rows: tuple[str, NoteAction, str, str, str | None]) -> list[NoteVersion]:
    """Make note versions from rows of note, action, content, session, and the turn or review that wrote it."""
    versions: list[NoteVersion] = []
    for at, (note_id, action, content, session_id, turn_id) in enumerate(rows):
        number = 1 + sum(v.note_id == note_id for v in versions)
        versions.append(
            NoteVersion(note_id, number, ME, NoteTarget.USER, action, content, session_id, turn_id, float(at))
        )
    return versions


def mended(mending: NoteRepair) -> tuple[list[str], dict[str, str | None]]:
    """Return the tainted versions, and the restored content of each note."""
    gone = [f"{v.note_id}{v.version}" for v in mending.tainted]
    return sorted(gone), {back.last.note_id: back.to.content if back.to else None for back in mending.restores}


def test_without_notes_of_the_session_nothing_changes() -> None:
    versions = written(("a", ADD, "tea", R, "t1"), ("a", REPLACE, "coffee", T, REVIEW))
    assert plan_repair(S, versions) == NoteRepair()


def test_a_note_is_restored_to_its_content_before_the_session() -> None:
    versions = written(("a", ADD, "tea", R, "t1"), ("a", REPLACE, "tea, with rum", S, "t2"))
    assert mended(plan_repair(S, versions)) == ([], {"a": "tea"})


def test_changes_of_the_note_by_another_session_are_removed_too() -> None:
    versions = written(("a", ADD, "rum", S, "t1"), ("a", REPLACE, "rum, neat", T, "t2"), ("b", ADD, "bread", T, "t3"))
    mending = plan_repair(S, versions)
    assert mended(mending) == (["a2"], {"a": None})
    assert mending.writings == ((T, "t2"),)


def test_merged_notes_are_restored_without_those_of_the_session() -> None:
    versions = written(
        ("a", ADD, "likes tea", R, "t1"),
        ("b", ADD, "likes rum", S, "t2"),
        ("c", ADD, "has a boat", U, "t3"),
        ("a", REPLACE, "drinks tea, rum", T, REVIEW),
        ("b", REMOVE, "", T, REVIEW),
        ("c", REMOVE, "", T, REVIEW),
    )
    mending = plan_repair(S, versions)
    assert mended(mending) == (["a2"], {"a": "likes tea", "c": "has a boat"})
    assert mending.writings == ((T, REVIEW),)


@pytest.mark.parametrize("removed_first", [True, False])
def test_a_note_that_replaced_others_is_removed_too(removed_first: bool) -> None:
    add, remove = ("b", ADD, "drinks rum", T, REVIEW), ("a", REMOVE, "", T, REVIEW)
    versions = written(("a", ADD, "likes rum", S, "t1"), *((remove, add) if removed_first else (add, remove)))
    assert mended(plan_repair(S, versions)) == (["b1"], {"b": None})


def test_notes_derived_from_derived_notes_are_removed_too() -> None:
    versions = written(
        ("a", ADD, "likes rum", S, "t1"),
        ("b", ADD, "likes tea", R, "t2"),
        ("b", REPLACE, "rum or tea", T, REVIEW),
        ("a", REMOVE, "", T, REVIEW),
        ("c", ADD, "has a boat", R, "t3"),
        ("c", REPLACE, "boat, drinks", U, REVIEW),
        ("b", REMOVE, "", U, REVIEW),
    )
    mending = plan_repair(S, versions)
    assert mended(mending) == (["b2", "c2"], {"b": "likes tea", "c": "has a boat"})
    assert mending.writings == ((T, REVIEW), (U, REVIEW))


def test_notes_that_were_merged_twice_are_restored() -> None:
    versions = written(
        ("a", ADD, "likes rum", S, "t1"),
        ("b", ADD, "likes tea", R, "t2"),
        ("c", ADD, "has a boat", R, "t3"),
        ("a", REPLACE, "rum or tea", T, REVIEW),
        ("b", REMOVE, "", T, REVIEW),
        ("c", REPLACE, "boat, drinks", U, REVIEW),
        ("a", REMOVE, "", U, REVIEW),
    )
    assert mended(plan_repair(S, versions)) == (["a2", "c2"], {"b": "likes tea", "c": "has a boat"})


def test_notes_condensed_by_a_review_of_the_session_are_restored() -> None:
    versions = written(
        ("a", ADD, "likes tea", R, "t1"),
        ("b", ADD, "likes milk", R, "t2"),
        ("a", REPLACE, "tea, milk", S, REVIEW),
        ("b", REMOVE, "", S, REVIEW),
    )
    mending = plan_repair(S, versions)
    assert mended(mending) == ([], {"a": "likes tea", "b": "likes milk"})
    assert mending.writings == ()


def test_a_note_that_a_user_removed_stays_removed() -> None:
    versions = written(
        ("a", ADD, "likes tea", R, "t1"),
        ("b", ADD, "likes rum", S, "t2"),
        ("a", REMOVE, "", T, "t3"),
        ("c", ADD, "likes rum, no tea", T, "t3"),
    )
    assert mended(plan_repair(S, versions)) == (["c1"], {"c": None})


def test_a_merged_note_that_a_user_removed_stays_removed() -> None:
    versions = written(
        ("a", ADD, "likes rum", S, "t1"),
        ("b", ADD, "likes tea", R, "t2"),
        ("a", REPLACE, "rum or tea", T, REVIEW),
        ("b", REMOVE, "", T, REVIEW),
        ("a", REMOVE, "", "notes:me", None),
    )
    assert mended(plan_repair(S, versions)) == (["a2"], {})


def test_a_change_that_was_already_undone_is_not_repeated() -> None:
    versions = written(
        ("a", ADD, "likes tea", R, "t1"),
        ("b", ADD, "likes rum", S, "t2"),
        ("a", REPLACE, "tea, rum", T, REVIEW),
        ("b", REMOVE, "", T, REVIEW),
        ("a", REPLACE, "likes tea", R, None),
    )
    assert mended(plan_repair(S, versions)) == (["a2"], {})


def test_repeated_words_are_removed_unless_older_or_written_by_a_user() -> None:
    versions = written(
        ("a", ADD, "likes rum, and tea", R, "t1"),
        ("b", ADD, "likes rum", S, "t2"),
        ("c", ADD, "he likes rum", T, "t3"),
        ("d", ADD, "yes, likes rum", "notes:me", None),
    )
    assert mended(plan_repair(S, versions)) == (["c1"], {"c": None})


def test_a_removal_is_sent_to_every_session_that_reported_the_note() -> None:
    rows = ("a", ADD, "likes rum", S, "t1"), ("a", REPLACE, "rum", T, "t2"), ("a", REPLACE, "rum, and gin", S, "t3")
    (back,) = plan_repair(S, written(*rows)).restores
    assert (back.to, back.places) == (None, (T,))
    (back,) = plan_repair(S, written(*rows[:2], ("a", REMOVE, "", S, "t3"))).restores
    assert (back.to, back.places) == (None, (T,))


# --- Through the lifecycle -------------------------------------------------------------------------------------------


class Notes(CoreFixture):
    async def noted(self, ref: SessionRef, content: str, note_id: str = "", turn_id: str | None = "t1") -> str:
        change = NoteChange(REPLACE if note_id else ADD, NoteTarget.USER, content, note_id, turn_id)
        return (await self.lifecycle.write_note(change, owner=ME, ref=ref)).note_id

    async def condense(self, ref: SessionRef, content: str) -> ReviewWindow:
        """Replace all notes by one, as a review of the session does."""
        window = ReviewWindow(1, 1)
        await self.store.write(lambda uow: uow.reviews.add(ref.session_id, window, self.clock.now()))
        taken = await self.lifecycle.claim_next_review()
        assert taken is not None
        first, *others = read = await self.current()
        changes = [NoteChange(REPLACE, NoteTarget.USER, content, first.note_id, window.mark)]
        changes += [NoteChange(REMOVE, NoteTarget.USER, "", other.note_id, window.mark) for other in others]
        rewriting = NoteRewrite(NoteTarget.USER, read, tuple(changes))
        await self.lifecycle.rewrite_notes(rewriting, owner=ME, ref=ref, review=taken[0])
        await self.store.write(lambda uow: uow.reviews.end(taken[0], ReviewState.DONE))
        return window

    async def current(self) -> tuple[NoteVersion, ...]:
        return await self.store.read(lambda uow: uow.notes.current(ME, NoteTarget.USER))

    async def conversations(self, count: int) -> list[SessionRef]:
        refs: list[SessionRef] = []
        for _ in range(count):
            await self.cross(TELEGRAM, New())
            refs.append(await self.at(TELEGRAM))
            await self.turn(TELEGRAM, "hello")
        return refs


async def test_no_note_contains_words_of_a_forgotten_session(tmp_path: Path) -> None:
    diary = AsyncDiary("diary")
    async with Notes(tmp_path, diary) as core:
        r, s, t = await core.conversations(3)
        tea = await core.noted(r, "likes tea with milk")
        rum = await core.noted(s, "likes rum from Jamaica")
        await core.condense(t, "drinks tea, rum")

        note_files = core.note_files(lambda owner: tmp_path / "notes")
        await note_files.sync(ME)
        assert "rum" in (tmp_path / "notes" / "USER.md").read_text()
        await core.settled()
        await core.lifecycle.forget(ForgetSession(s.session_id), owner=ME)
        await note_files.sync(ME)
        assert (tmp_path / "notes" / "USER.md").read_text() == "likes tea with milk\n"
        (left,) = await core.current()
        assert (left.note_id, left.content, left.session_id) == (tea, "likes tea with milk", r.session_id)
        versions = await core.store.read(lambda uow: uow.notes.history(ME, 100))
        assert not [v for v in versions if "rum" in v.content]
        assert {v.content for v in versions if v.session_id != r.session_id} == {FORGOTTEN, ""}
        with pytest.raises(Erased):
            await core.lifecycle.undo_note(tea, left.version, owner=ME)
        with pytest.raises(Erased):
            await core.lifecycle.undo_note(rum, 2, owner=ME)
        # Providers that mirror notes receive the restored content.
        await core.settled()
        last = diary.book.of("on_memory_write")[-1]
        assert (last.more["action"], last.text) == ("replace", "likes tea with milk")


async def test_a_review_whose_notes_were_removed_is_scheduled_again(tmp_path: Path) -> None:
    async with Notes(tmp_path) as core:
        s, t, u = await core.conversations(3)
        await core.noted(s, "likes rum")
        window = await core.condense(t, "rum")
        await core.noted(u, "other things", turn_id="review-1-1")

        async def states(ref: SessionRef) -> list[tuple[ReviewWindow, ReviewState]]:
            rows = await core.store.read(lambda uow: uow.reviews.of_session(ref.session_id))
            return [(row.window, row.state) for row in rows]

        assert await states(t) == [(window, ReviewState.DONE)]
        await core.lifecycle.forget(ForgetSession(s.session_id), owner=ME)
        assert await states(t) == [(window, ReviewState.WAITING)]
        assert await states(u) == []
        assert [note.content for note in await core.current()] == ["other things"]


async def test_a_removed_note_is_reported_under_the_session_that_last_wrote_it(tmp_path: Path) -> None:
    diary = AsyncDiary("diary")
    async with Notes(tmp_path, diary) as core:
        s, t = await core.conversations(2)
        note = await core.noted(s, "likes rum")
        await core.noted(t, "likes rum, neat", note)
        await core.settled()
        await core.lifecycle.forget(ForgetSession(s.session_id), owner=ME)
        await core.settled()
        assert await core.current() == ()
        last = diary.book.of("on_memory_write")[-1]
        assert (last.more["action"], last.text, last.session) == ("remove", "", t.session_id)


async def test_prompt_prefixes_that_contain_the_words_are_dropped(tmp_path: Path) -> None:
    async with Notes(tmp_path) as core:
        r, s = await core.conversations(2)
        note = await core.noted(s, "likes rum")
        await core.noted(r, "likes rum, neat", note)
        await core.lifecycle.put_prefix(r, b"likes rum, neat", 0)
        await core.lifecycle.forget(ForgetSession(s.session_id), owner=ME)
        assert await core.store.read(lambda uow: uow.turns.prefix(r.session_id)) is None


async def test_forgetting_an_owner_restores_no_note(tmp_path: Path) -> None:
    async with Notes(tmp_path) as core:
        r, s, t = await core.conversations(3)
        await core.noted(r, "likes tea")
        await core.noted(s, "likes rum")
        await core.condense(t, "tea")
        await core.lifecycle.forget(ForgetOwner(), owner=ME)
        assert await core.current() == ()
        versions = await core.store.read(lambda uow: uow.notes.history(ME, 100))
        assert {v.content for v in versions} <= {FORGOTTEN, ""}
        assert len(versions) == 4
