from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.boundary import New, Resume
from everthread.domain.errors import Fenced
from everthread.domain.model import NoteAction, NoteTarget, SessionRef
from everthread.domain.review_window import Review, ReviewState
from everthread.lifecycle import NoteChange
from everthread.lifecycle.reviews import check_review, claim_review, schedule_full
from everthread.store.unit_of_work import UnitOfWork


async def test_a_full_window_is_scheduled_once_and_claimed_with_its_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ref = (await core.turn(CLI, "one")).ref
        session = await core.session(ref.session_id)
        for every, expected in ((2, None), (1, session.id)):
            await core.store.write(lambda uow, every=every: schedule_full(uow, session, every, 1.0))
            claimed = await core.store.write(lambda uow: claim_review(uow, core.holder, 2.0))
            assert (claimed[1].session_id if claimed else None) == expected


async def test_a_review_may_not_write_after_something_was_forgotten(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = await core.session((await core.turn(CLI, "one")).ref.session_id)
        await core.store.write(lambda uow: schedule_full(uow, session, 1, 1.0))
        claimed = await core.store.write(lambda uow: claim_review(uow, core.holder, 2.0))
        assert claimed is not None
        review = claimed[0]
        await core.store.read(lambda uow: check_review(uow, review, ME))
        await core.store.write(lambda uow: uow.erasure.add_tombstone("fact", "x", ME, 3.0))
        with pytest.raises(Fenced):
            await core.store.read(lambda uow: check_review(uow, review, ME))


class LeftSession(CoreFixture):
    """A core whose only session has been left, with a review of its turn due."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, review_every=3)

    async def leave(self) -> str:
        ref = (await self.turn(CLI, "one")).ref
        await self.lifecycle.cross(CLI, New(), owner=ME)
        return ref.session_id

    async def claim(self, holder: str) -> tuple[Review, SessionRef]:
        claimed = await self.store.write(lambda uow: claim_review(uow, holder, self.clock.now()))
        assert claimed is not None
        return claimed

    async def note(self, review: Review, ref: SessionRef, *texts: str) -> None:
        for text in texts:
            change = NoteChange(NoteAction.ADD, NoteTarget.USER, text)
            await self.lifecycle.write_note(change, owner=ME, ref=ref, review=review)

    async def kinds(self, session_id: str) -> list[str]:
        def read(uow: UnitOfWork) -> list[str]:
            session = uow.sessions.get(session_id)
            assert session is not None
            entries = [uow.log.after(session_id, seq) for seq in range(session.log_seq)]
            return [entry.kind.value for entry in entries if entry is not None]

        return await self.store.read(read)


@pytest.mark.parametrize("state", [ReviewState.DONE, ReviewState.FAILED])
async def test_a_left_session_is_closed_once_after_all_notes_of_its_review(tmp_path: Path, state: ReviewState) -> None:
    async with LeftSession(tmp_path) as core:
        session = await core.leave()
        review, ref = await core.claim(core.holder)
        await core.note(review, ref, "one", "two", "three")
        assert await core.kinds(session) == ["opened", "turn", "close", "note", "note", "note"]
        assert await core.lifecycle.end_review(review, state, ref=ref)
        assert await core.kinds(session) == ["opened", "turn", "close", "note", "note", "note", "close"]
        assert not await core.lifecycle.end_review(review, state, ref=ref)
        assert (await core.kinds(session)).count("close") == 2


async def test_the_process_that_ends_the_review_of_a_killed_one_closes_the_session(tmp_path: Path) -> None:
    async with LeftSession(tmp_path) as core:
        session = await core.leave()
        killed, ref = await core.claim("killed")
        await core.note(killed, ref, "one", "two")
        review, ref = await core.claim(core.holder)
        assert not await core.lifecycle.end_review(killed, ReviewState.DONE, ref=ref), "it has been taken over"
        assert await core.lifecycle.end_review(review, ReviewState.WAITING, ref=ref)
        assert (await core.kinds(session)).count("close") == 1, "the last attempt closes"
        review, ref = await core.claim(core.holder)
        assert await core.lifecycle.end_review(review, ReviewState.FAILED, ref=ref)
        assert (await core.kinds(session))[-3:] == ["note", "note", "close"]
        assert not (await core.session(session)).dirty


async def test_the_end_of_a_review_closes_no_session_that_is_in_use_or_unchanged(tmp_path: Path) -> None:
    async with LeftSession(tmp_path) as core:
        session = await core.leave()
        review, ref = await core.claim(core.holder)
        await core.lifecycle.cross(CLI, Resume(session), owner=ME)
        await core.note(review, ref, "one")
        assert await core.lifecycle.end_review(review, ReviewState.DONE, ref=ref)
        assert (await core.kinds(session)).count("close") == 1
        await core.lifecycle.cross(CLI, New(), owner=ME)
        assert (await core.kinds(session))[-2:] == ["note", "close"]
