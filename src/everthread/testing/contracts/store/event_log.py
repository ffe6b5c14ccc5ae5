"""Event stream of an owner's sessions, and pages of the session list."""

from __future__ import annotations

from everthread.domain.boundary import Rewind
from everthread.store.activity import FeedPosition, TurnActivity
from everthread.store.sessions import BoundaryRow
from everthread.testing.contracts.store.fixtures import StoreConversation, StoreFixture, key_named, on_store

WINDOW = 1000


def _kinds_and_numbers(news: tuple[BoundaryRow | TurnActivity, ...]) -> list[str | int]:
    return [one.kind if isinstance(one, BoundaryRow) else one.number for one in news]


class EventLogContract(StoreFixture):
    @on_store
    async def test_the_feed_has_each_boundary_and_turn_of_an_owner_once_in_order(self, talk: StoreConversation) -> None:
        key = key_named("1")
        await talk.say("hello", key, answer="Hello.")
        talk.clock.time += 1
        await talk.say("hi", key_named("2"), owner="ben", answer="Hi.")
        talk.clock.time += 1
        await talk.say("more", key, answer="Yes.")
        talk.clock.time += 1
        await talk.lifecycle.cross(key, Rewind(1), owner="ann")
        end = await talk.read(lambda uow: uow.activity.end())
        news, to = await talk.read(lambda uow: uow.activity.after("ann", FeedPosition(), WINDOW))
        assert (_kinds_and_numbers(news), to) == (["new", 1, 2, "rewind"], end)
        assert await talk.read(lambda uow: uow.activity.after("ann", end, WINDOW)) == ((), end)
        theirs, _ = await talk.read(lambda uow: uow.activity.after("ben", FeedPosition(), WINDOW))
        assert _kinds_and_numbers(theirs) == ["new", 1]

    @on_store
    async def test_a_small_feed_window_reads_the_same_as_a_large_one(self, talk: StoreConversation) -> None:
        for number in range(6):
            talk.clock.time += 1
            owner = "ann" if number % 2 else "ben"
            await talk.say("hello", key_named(owner), owner=owner, answer="Hello.")
        end = await talk.read(lambda uow: uow.activity.end())
        mark, pieces = FeedPosition(), list[str | int]()
        while mark != end:
            news, mark = await talk.read(lambda uow, mark=mark: uow.activity.after("ann", mark, 1))
            pieces += _kinds_and_numbers(news)
        whole, _ = await talk.read(lambda uow: uow.activity.after("ann", FeedPosition(), WINDOW))
        assert sorted(map(str, pieces)) == sorted(map(str, _kinds_and_numbers(whole)))
        assert [one for one in pieces if isinstance(one, int)] == [1, 2, 3]

    @on_store
    async def test_pages_list_each_conversation_of_the_owner_once(self, talk: StoreConversation) -> None:
        for number in range(5):
            talk.clock.time += number % 2
            await talk.say("hello", key_named(str(number)), answer="Hello.")
        await talk.say("hello", key_named("9"), owner="ben", answer="Hello.")
        everything = await talk.read(lambda uow: uow.sessions.page("ann", 100))
        assert len(everything) == 5
        before, found = None, list[str]()
        while some := await talk.read(lambda uow, before=before: uow.sessions.page("ann", 2, before)):
            found += [session.id for session in some]
            before = (some[-1].active_at, some[-1].id)
        assert found == [session.id for session in everything]
