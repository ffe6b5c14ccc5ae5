from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.errors import Fenced
from everthread.lifecycle.reviews import check_review, claim_review, schedule_full


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
