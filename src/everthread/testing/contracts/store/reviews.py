"""Reviews: each window of a session's turns is claimed once, by a live process."""

from __future__ import annotations

from contextlib import aclosing

from everthread.domain.review_window import Review, ReviewState, ReviewWindow
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import (
    OpenStore,
    StoreConversation,
    StoreFixture,
    on_store,
    plain_session,
    present,
)

FIRST, SECOND = ReviewWindow(1, 10), ReviewWindow(11, 14)


def _claim(uow: UnitOfWork, holder: str, now: float) -> Review | None:
    uow.leases.keep_alive(holder, now, 30.0)
    due = uow.reviews.is_due(now)
    found = uow.reviews.claim(holder, now)
    assert (found is not None) is due
    return Review(*found, forget_count=0) if found else None


class ReviewContract(StoreFixture):
    @in_loop
    async def test_a_review_is_claimed_once_longest_due_first(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            await store.write(lambda uow: uow.sessions.add(plain_session("s1")))
            await store.write(lambda uow: uow.reviews.add("s1", SECOND, 2.0))
            await store.write(lambda uow: uow.reviews.add("s1", FIRST, 1.0))
            await store.write(lambda uow: uow.reviews.add("s1", FIRST, 1.0))
            assert await store.write(lambda uow: _claim(uow, "one", 0.5)) is None
            first = present(await store.write(lambda uow: _claim(uow, "one", 3.0)))
            second = present(await other.write(lambda uow: _claim(uow, "two", 3.0)))
            assert (first.window, second.window) == (FIRST, SECOND)
            assert await store.write(lambda uow: _claim(uow, "two", 3.0)) is None
            await store.write(lambda uow: uow.reviews.end(first, ReviewState.DONE))
            await store.write(lambda uow: uow.reviews.end(second, ReviewState.WAITING, 50.0))
            await store.write(lambda uow: uow.reviews.add("s1", FIRST, 4.0))
            assert await store.write(lambda uow: _claim(uow, "one", 49.0)) is None
            again = present(await store.write(lambda uow: _claim(uow, "one", 50.0)))
            assert again.window == SECOND
            assert again.fence > second.fence
            rows = await other.read(lambda uow: uow.reviews.of_session("s1"))
            assert [(row.window, row.state, row.fence) for row in rows] == [
                (FIRST, ReviewState.DONE, 1),
                (SECOND, ReviewState.RUNNING, 2),
            ]

    @on_store
    async def test_a_review_of_a_dead_process_is_taken_over_with_a_new_fence(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.reviews.add("s1", FIRST, 1.0))
        lost = present(await talk.write(lambda uow: _claim(uow, "one", 1.0)))
        assert await talk.write(lambda uow: _claim(uow, "two", 30.0)) is None
        found = present(await talk.write(lambda uow: _claim(uow, "two", 31.0)))
        held = await talk.read(lambda uow: (uow.reviews.is_held(lost), uow.reviews.is_held(found)))
        assert held == (False, True)
        await talk.write(lambda uow: uow.reviews.end(lost, ReviewState.FAILED))
        assert await talk.read(lambda uow: uow.reviews.is_held(found))

    @on_store
    async def test_a_stopped_review_is_not_held_does_not_count_and_can_be_restarted(
        self, talk: StoreConversation
    ) -> None:
        await talk.write(lambda uow: uow.reviews.add("s1", FIRST, 1.0))
        await talk.write(lambda uow: uow.reviews.add("s1", SECOND, 2.0))
        assert await talk.read(lambda uow: (uow.reviews.reviewed_to("s1"), uow.reviews.reviewed_to("s2"))) == (
            14,
            0,
        )
        done = present(await talk.write(lambda uow: _claim(uow, "one", 2.0)))
        await talk.write(lambda uow: uow.reviews.end(done, ReviewState.DONE))
        review = present(await talk.write(lambda uow: _claim(uow, "one", 2.0)))
        await talk.write(lambda uow: uow.reviews.stop("s1", ReviewWindow(15, 20)))
        assert await talk.read(lambda uow: uow.reviews.is_held(review))
        await talk.write(lambda uow: uow.reviews.stop("s1", ReviewWindow(5, 11)))
        assert not await talk.read(lambda uow: uow.reviews.is_held(review))
        rows = await talk.read(lambda uow: uow.reviews.of_session("s1"))
        assert [row.state for row in rows] == [ReviewState.DONE, ReviewState.STOPPED]
        assert await talk.read(lambda uow: uow.reviews.reviewed_to("s1")) == 10
        await talk.write(lambda uow: uow.reviews.add("s1", SECOND, 3.0))
        assert await talk.write(lambda uow: _claim(uow, "one", 3.0)) is not None
