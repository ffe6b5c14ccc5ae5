"""Units of work and uniqueness constraints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest
from msgspec.structs import replace

from everthread.domain.boundary import New
from everthread.domain.errors import Busy, StoreError, TitleTaken
from everthread.domain.model import (
    Binding,
    Fate,
    Inbound,
    InboxState,
    Session,
    SessionRef,
    Slot,
    Timer,
)
from everthread.lifecycle import TurnClaim
from everthread.store.sessions import KeyState
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    OpenStore,
    StoreConversation,
    StoreFixture,
    awaited,
    key_named,
    on_store,
    one_step,
    plain_session,
    present,
)

T = TypeVar("T")
EITHER_WAY = pytest.mark.parametrize("how", ["write", "write_inline"])


def put(store: Store, how: str, work: Callable[[UnitOfWork], T]) -> Awaitable[T]:
    return store.write_inline(work) if how == "write_inline" else store.write(work)


class TransactionContract(StoreFixture):
    # Units of work ---------------------------------------------------------------------------------------------------

    @EITHER_WAY
    @in_loop
    async def test_a_unit_of_work_that_raises_writes_nothing(self, open_store: OpenStore, how: str) -> None:
        def work(uow: UnitOfWork) -> None:
            uow.sessions.add(plain_session("s1"))
            uow.sessions.bind(Binding(KEY, "ann", "s1", 1))
            raise ValueError("changed my mind")

        async with aclosing(await open_store()) as store:
            with pytest.raises(ValueError, match="changed my mind"):
                await put(store, how, work)
            assert await store.read(lambda uow: (uow.sessions.get("s1"), uow.sessions.binding(KEY))) == (None, None)

    @EITHER_WAY
    @in_loop
    async def test_a_unit_of_work_that_raises_does_not_affect_others(self, open_store: OpenStore, how: str) -> None:
        def work(uow: UnitOfWork, number: int) -> int:
            uow.sessions.add(plain_session(f"s{number}"))
            if number % 3 == 0:
                raise ValueError(str(number))
            return number

        async with aclosing(await open_store()) as store:
            results = await asyncio.gather(
                *(put(store, how, lambda uow, n=n: work(uow, n)) for n in range(20)), return_exceptions=True
            )
            for number, result in enumerate(results):
                there = await store.read(lambda uow, n=number: uow.sessions.get(f"s{n}"))
                if number % 3 == 0:
                    assert str(result) == str(number)
                    assert isinstance(result, ValueError)
                    assert there is None
                else:
                    assert result == number
                    assert there is not None

    @EITHER_WAY
    @in_loop
    async def test_a_unit_of_work_reads_its_own_writes(self, open_store: OpenStore, how: str) -> None:
        def work(uow: UnitOfWork) -> Session | None:
            uow.sessions.add(plain_session("s1"))
            uow.sessions.save(plain_session("s1").replace(last_turn=7))
            return uow.sessions.get("s1")

        async with aclosing(await open_store()) as store:
            assert await put(store, how, work) == plain_session("s1").replace(last_turn=7)

    @on_store
    async def test_a_ref_has_the_generation_of_its_session(self, talk: StoreConversation) -> None:
        """For keys bound before or after the change, and for changes by any handle."""
        renewed = plain_session("s1").replace(generation=3)

        def work(uow: UnitOfWork) -> None:
            uow.sessions.add(plain_session("s1"))
            uow.sessions.bind(Binding(KEY, renewed.owner, "s1", 1))
            uow.sessions.renew(renewed)
            uow.sessions.bind(Binding(OTHER_KEY, renewed.owner, "s1", 5))

        await talk.write(work)
        there = [
            await talk.read(lambda uow, key=key: (uow.sessions.ref(key), uow.sessions.at(key)))
            for key in (KEY, OTHER_KEY)
        ]
        assert [ref for ref, _ in there] == [
            SessionRef("s1", 3, KEY, 1, renewed.owner),
            SessionRef("s1", 3, OTHER_KEY, 5, renewed.owner),
        ]
        assert [session for _, (_, session) in there] == [renewed, renewed]
        await talk.write(lambda uow: uow.sessions.bind(Binding(KEY, renewed.owner, None, 2)))
        assert await talk.read(lambda uow: uow.sessions.ref(KEY)) is None
        nowhere = (Binding(KEY, renewed.owner, None, 2), None)
        assert await talk.read(lambda uow: uow.sessions.at(KEY)) == nowhere
        assert await talk.read(lambda uow: uow.sessions.at(key_named("elsewhere"))) == (None, None)

    @on_store
    async def test_key_state_has_the_session_and_its_other_keys(self, talk: StoreConversation) -> None:
        odd = key_named("a\nb")
        assert await talk.read(lambda uow: uow.sessions.key_state(KEY)) == KeyState()
        session_id = await talk.new(KEY)
        alone = await talk.read(lambda uow: uow.sessions.key_state(KEY))
        assert (alone.binding, alone.session) == await talk.read(lambda uow: uow.sessions.at(KEY))
        assert (alone.other_keys, alone.running) == ((), None)
        for key in (OTHER_KEY, odd):
            await talk.resume(key, session_id)
        await talk.begin("hello", odd)
        here = await talk.read(lambda uow: uow.sessions.key_state(KEY))
        assert (set(here.other_keys), here.running) == ({OTHER_KEY, odd}, odd)
        await talk.write(lambda uow: uow.sessions.bind(Binding(KEY, "ann", None, 9)))
        gone = await talk.read(lambda uow: uow.sessions.key_state(KEY))
        assert gone == KeyState(Binding(KEY, "ann", None, 9), awaited=False)

    @on_store
    async def test_key_state_shows_waiting_messages(self, talk: StoreConversation) -> None:
        async def waits() -> tuple[bool, float | None]:
            here = await talk.read(lambda uow: uow.sessions.key_state(KEY, "a timer"))
            return here.awaited, here.timer_at

        await talk.new(KEY)
        assert await waits() == (False, None)
        await talk.write(lambda uow: uow.inbox.accept(Inbound(KEY, "ann", "/stop", command=True), 1.0))
        await talk.write(lambda uow: uow.inbox.accept(Inbound(OTHER_KEY, "ann", "elsewhere"), 1.0))
        await talk.write(lambda uow: uow.leases.arm(Timer("another timer", 5.0, KEY)))
        assert await waits() == (False, None)
        row, _ = await talk.write(lambda uow: uow.inbox.accept(Inbound(KEY, "ann", "hello"), 2.0))
        await talk.write(lambda uow: uow.leases.arm(Timer("a timer", 5.0, KEY)))
        assert await waits() == (True, 5.0)
        await talk.write(lambda uow: uow.inbox.assign(row.id, "s1", "t1"))
        await talk.write(lambda uow: uow.leases.disarm("a timer"))
        assert await waits() == (False, None)

    @on_store
    async def test_all_keys_of_a_session_see_a_rewind(self, talk: StoreConversation) -> None:
        session_id = (await talk.say("hello", KEY)).session_id
        await talk.resume(OTHER_KEY, session_id)
        assert await talk.rewind(KEY) is None
        session = await talk.session(session_id)
        refs = [await talk.lifecycle.current(key) for key in (KEY, OTHER_KEY)]
        assert [ref and (ref.session_id, ref.generation) for ref in refs] == [(session_id, session.generation)] * 2
        assert session.generation > 0

    @on_store
    async def test_a_key_with_a_new_owner_belongs_to_that_owner_alone(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.sessions.bind(Binding(KEY, "ann", None, 1)))
        await talk.write(lambda uow: uow.sessions.bind(Binding(KEY, "bob", None, 2)))
        binding = await talk.read(lambda uow: uow.sessions.binding(KEY))
        assert binding == Binding(KEY, "bob", None, 2)
        keys = await talk.read(lambda uow: [uow.sessions.keys_of(owner) for owner in ("ann", "bob")])
        assert keys == [(), (KEY,)]

    @EITHER_WAY
    @in_loop
    async def test_a_result_is_returned_only_after_the_commit(self, open_store: OpenStore, how: str) -> None:
        """A returned result is visible through every other handle immediately."""
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            for number in range(30):
                await put(store, how, lambda uow, n=number: uow.sessions.add(plain_session(f"s{n}")))
                assert await other.read(lambda uow, n=number: uow.sessions.get(f"s{n}")) is not None

    @EITHER_WAY
    @in_loop
    async def test_a_returned_write_survives_a_crash(self, open_store: OpenStore, how: str) -> None:
        store = await open_store()
        await asyncio.gather(
            *(put(store, how, lambda uow, n=n: uow.sessions.add(plain_session(f"s{n:02d}"))) for n in range(20))
        )
        await self.crash(store)
        async with aclosing(await open_store()) as after:
            found = await after.read(lambda uow: uow.sessions.matching("s", 100))
            assert [session.id for session in found] == [f"s{n:02d}" for n in range(20)]

    @EITHER_WAY
    @in_loop
    async def test_a_write_is_committed_although_its_caller_was_cancelled(
        self, open_store: OpenStore, how: str
    ) -> None:
        async with aclosing(await open_store()) as store:
            for steps in range(1, 8):
                session = plain_session(f"s{steps}")
                task = asyncio.ensure_future(put(store, how, lambda uow, s=session: uow.sessions.add(s)))
                for _ in range(steps):
                    await one_step()
                task.cancel()
                await asyncio.wait({task})
            async with asyncio.timeout(5):
                while len(await store.read(lambda uow: uow.sessions.matching("s", 100))) < 7:
                    await one_step()

    @on_store
    async def test_writes_are_committed_in_the_order_of_their_calls(self, talk: StoreConversation) -> None:
        inline = (True, True, False, True, False, False, True, True, True, False)
        ways = ["write_inline" if is_inline else "write" for is_inline in inline]
        for steps in range(3):
            order: list[int] = []
            writing: list[asyncio.Future[None]] = []
            for number, how in enumerate(ways):
                work = put(talk.store, how, lambda uow, n=number, o=order: o.append(n))
                writing.append(asyncio.ensure_future(work))
                for _ in range(steps):
                    await one_step()
            await asyncio.gather(*writing)
            assert order == list(range(len(ways)))

    @EITHER_WAY
    @in_loop
    async def test_closing_finishes_queued_writes(self, open_store: OpenStore, how: str) -> None:
        for steps in range(3):
            store = await open_store()
            waiting = [
                asyncio.ensure_future(put(store, how, lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}"))))
                for n in range(20 * steps, 20 * (steps + 1))
            ]
            for _ in range(steps):
                await one_step()
            async with asyncio.timeout(5):
                await asyncio.gather(*waiting, store.aclose())
        async with aclosing(await open_store()) as after:
            assert len(await after.read(lambda uow: uow.sessions.matching("s", 100))) == 60

    @EITHER_WAY
    @in_loop
    async def test_a_closed_store_raises_and_can_be_closed_again(self, open_store: OpenStore, how: str) -> None:
        store = await open_store()
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreError):
            await put(store, how, lambda uow: uow.sessions.add(plain_session("s1")))
        with pytest.raises(StoreError):
            await store.read(lambda uow: uow.sessions.get("s1"))
        with pytest.raises(StoreError):
            await store.changed()

    @EITHER_WAY
    @in_loop
    async def test_two_handles_work_concurrently(self, open_store: OpenStore, how: str) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            await asyncio.gather(
                *(
                    put(handle, how, lambda uow, n=n, h=h: uow.sessions.add(plain_session(f"s-{h}-{n}")))
                    for h, handle in enumerate((one, two))
                    for n in range(40)
                )
            )
            for handle in (one, two):
                assert len(await handle.read(lambda uow: uow.sessions.matching("s-", 100))) == 80

    @in_loop
    async def test_a_read_uses_one_snapshot(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            await other.write(lambda uow: uow.sessions.add(plain_session("s1")))
            loop, thread = asyncio.get_running_loop(), threading.get_ident()

            def look(uow: UnitOfWork) -> tuple[int, int]:
                before = len(uow.sessions.matching("s", 10))
                # A store that reads in the event loop's thread admits no concurrent writer.
                if threading.get_ident() != thread:
                    writing = other.write(lambda uow: uow.sessions.add(plain_session("s2")))
                    asyncio.run_coroutine_threadsafe(awaited(writing), loop).result(timeout=5)
                return before, len(uow.sessions.matching("s", 10))

            assert await store.read(look) == (1, 1)
            await other.write(lambda uow: uow.sessions.add(plain_session("s3")))
            assert await store.read(lambda uow: uow.sessions.get("s3")) is not None

    @EITHER_WAY
    @in_loop
    async def test_any_commit_changes_the_change_number(self, open_store: OpenStore, how: str) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            await put(store, how, lambda uow: uow.sessions.add(plain_session("s0")))
            numbers = [await store.changed()]
            assert await store.changed() == numbers[0]
            await put(other, how, lambda uow: uow.sessions.add(plain_session("s1")))
            numbers.append(await store.changed())
            await put(store, how, lambda uow: uow.sessions.add(plain_session("s2")))
            numbers.append(await store.changed())
            assert len(set(numbers)) == 3
            await store.read(lambda uow: uow.sessions.get("s1"))
            assert await store.changed() == numbers[-1]

    # Uniqueness ------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_session_has_one_live_slot(self, talk: StoreConversation) -> None:
        def slot(turn_id: str, fate: Fate, session_id: str = "s1") -> Slot:
            return Slot(turn_id, SessionRef(session_id, 0, KEY, 1, "ann"), "here", 1, fate, 1, 1.0)

        await talk.write(lambda uow: uow.slots.add(slot("t1", Fate.LIVE)))
        with pytest.raises(StoreError):
            await talk.write(lambda uow: uow.slots.add(slot("t2", Fate.LIVE)))
        await talk.write(lambda uow: uow.slots.add(slot("t3", Fate.LATE)))
        await talk.write(lambda uow: uow.slots.add(slot("t4", Fate.LIVE, "s2")))
        await talk.write(lambda uow: uow.slots.set_fate("t1", Fate.LATE))
        await talk.write(lambda uow: uow.slots.add(slot("t2", Fate.LIVE)))
        live, all_of_it = await talk.read(lambda uow: (uow.slots.live("s1"), uow.slots.of_session("s1")))
        assert live == slot("t2", Fate.LIVE)
        assert [one.turn_id for one in all_of_it] == ["t1", "t2", "t3"]

    @in_loop
    async def test_a_turn_acts_while_it_is_live_at_the_generation_of_its_session(self, open_store: OpenStore) -> None:
        def slot(number: int, holder: str = "here", *, fence: int = 1, generation: int = 0) -> Slot:
            ref = SessionRef(f"s{number}", generation, KEY, 1, "ann")
            return Slot(f"t{number}", ref, holder, fence, Fate.LIVE, number, 1.0)

        def add(uow: UnitOfWork) -> None:
            slots = (slot(1, fence=3), slot(2), slot(3), slot(4, "elsewhere"), slot(5, generation=1))
            for number, one in enumerate(slots, 1):
                uow.sessions.add(plain_session(f"s{number}"))
                uow.slots.add(one)

        async with aclosing(await open_store()) as store:
            await store.write(add)
            await store.write(lambda uow: uow.slots.set_fate("t2", Fate.LATE))
            await store.write(lambda uow: uow.slots.set_fate("t3", Fate.HIDDEN))
            acting = await store.read(lambda uow: [uow.slots.acting(f"t{number}") for number in range(1, 7)])
            assert acting == [slot(1, fence=3), None, None, slot(4, "elsewhere"), None, None]
            assert await store.read(lambda uow: uow.slots.acting_of("here")) == {("t1", 3)}

    @on_store
    async def test_a_title_is_unique_per_owner(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.sessions.add(plain_session("s1", title="Straße")))
        with pytest.raises(StoreError):
            await talk.write(lambda uow: uow.sessions.add(plain_session("s2", title="STRASSE")))
        await talk.write(lambda uow: uow.sessions.add(plain_session("s3", "bob", title="Straße")))
        await talk.write(lambda uow: uow.sessions.add(plain_session("s4")))
        await talk.write(lambda uow: uow.sessions.add(plain_session("s5")))
        with pytest.raises(StoreError):
            await talk.write(lambda uow: uow.sessions.set_title("s4", "straße"))
        await talk.write(lambda uow: uow.sessions.set_title("s1", None))
        await talk.write(lambda uow: uow.sessions.set_title("s4", "straße"))

    @in_loop
    async def test_one_of_many_concurrent_renames_gets_the_title(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [StoreConversation(one, "one"), StoreConversation(two, "two")]
            results = await asyncio.gather(
                *(talk.new(key_named(f"{n}-{t}"), title="Trip") for t, talk in enumerate(talks) for n in range(5)),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, BaseException)]
            assert len(refused) == 9
            assert all(isinstance(error, TitleTaken) for error in refused)

    @in_loop
    async def test_an_update_of_a_platform_is_accepted_once(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            same = Inbound(KEY, "ann", "hello", account="bot", update_id="7", user="u-42")
            assert await one.read(lambda uow: uow.inbox.known(same)) is None
            taken = await asyncio.gather(
                *(handle.write(lambda uow: uow.inbox.accept(same, 5.0)) for handle in (one, two) for _ in range(10))
            )
            assert sum(new for _, new in taken) == 1
            assert len({row.id for row, _ in taken}) == 1
            assert {row.inbound for row, _ in taken} == {same}
            # Platform, account and update id identify an update; chat, owner and text may differ.
            known = replace(same, key=key_named("another chat"), owner="bea", text="hello?", command=True, user="")
            assert await two.read(lambda uow: uow.inbox.known(known)) == taken[0][0]
            for different in (
                replace(same, account="other bot"),
                replace(same, key=key_named("42", "matrix")),
                replace(same, update_id="8"),
                replace(same, update_id=None),
                replace(same, update_id=None),
            ):
                assert await two.read(lambda uow, i=different: uow.inbox.known(i)) is None
                assert (await one.write(lambda uow, i=different: uow.inbox.accept(i, 6.0)))[1]
            assert len(await two.read(lambda uow: uow.inbox.waiting(KEY))) == 5
            await one.write(lambda uow: uow.inbox.end_command(taken[0][0].id))
            done = present(await two.read(lambda uow: uow.inbox.known(same)))
            assert (done.id, done.state) == (taken[0][0].id, InboxState.DONE)

    @in_loop
    async def test_fifty_concurrent_boundaries_have_fifty_epochs(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [StoreConversation(one, "one"), StoreConversation(two, "two")]
            crossings = await asyncio.gather(
                *(talks[n % 2].lifecycle.cross(KEY, New(), owner="ann") for n in range(50))
            )
            assert sorted(c.ref.epoch for c in crossings if c.ref) == list(range(1, 51))
            trail = await one.read(lambda uow: uow.sessions.boundaries(limit=100))
            # Newest first; each boundary leaves the session that the previous one opened.
            assert [row.epoch for row in trail] == list(range(50, 0, -1))
            assert [row.from_session for row in trail[:-1]] == [row.to_session for row in trail[1:]]
            open_now = [s for s in await one.read(lambda uow: uow.sessions.of_owner("ann")) if s.ended_at is None]
            assert [s.id for s in open_now] == [trail[0].to_session]

    @in_loop
    async def test_one_of_many_concurrent_begins_gets_the_claim(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [StoreConversation(one, "one"), StoreConversation(two, "two")]
            for text in ("first", "second"):
                await talks[0].accept(text, KEY)
            results = await asyncio.gather(
                *(talks[n % 2].lifecycle.begin_turn(KEY) for n in range(20)), return_exceptions=True
            )
            tickets = [result for result in results if isinstance(result, TurnClaim)]
            assert [ticket.message.inbound.text for ticket in tickets] == ["first"]
            assert all(isinstance(result, Busy) for result in results if not isinstance(result, TurnClaim))
