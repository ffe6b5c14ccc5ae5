"""Cursors, leases, timers and hooks."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from everthread.domain.boundary import New
from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.domain.errors import Fenced
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    HookCall,
    Inbound,
    Lease,
    NoteAction,
    NoteTarget,
    SessionKind,
    Timer,
)
from everthread.lifecycle import NoteChange
from everthread.store.cursors import Redelivery
from everthread.store.incidents import Incident
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    OpenStore,
    StoreConversation,
    StoreFixture,
    key_named,
    on_store,
    present,
)


class CursorAndLeaseContract(StoreFixture):
    # Cursors ---------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_new_provider_starts_at_the_ends_of_the_logs(self, talk: StoreConversation) -> None:
        ref = await talk.say("before", KEY)
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert await talk.discover_all() == ()
        await talk.say("after", KEY)
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert await talk.discover_all() == (ref.session_id,)
        cursor = present(await talk.read(lambda uow: uow.cursors.get("p", ref.session_id)))
        following = present(await talk.read(lambda uow: uow.log.after(ref.session_id, cursor.seq)))
        assert (following.kind, following.number) == (EntryKind.TURN, 2)

    @on_store
    async def test_scheduled_and_delegated_work_is_never_discovered(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        for n, kind in enumerate((SessionKind.CRON, SessionKind.SUBAGENT)):
            await talk.lifecycle.cross(key_named(str(n)), New(kind=kind), owner="ann")
        chat = await talk.new(KEY)
        note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "tea"), owner="ann")
        assert set(await talk.discover_all()) == {chat, note.session_id}
        assert await talk.write(lambda uow: uow.cursors.restart("p", None, 5.0)) == 2

    @on_store
    async def test_delegated_work_is_found_while_it_runs_and_listed_on_request(self, talk: StoreConversation) -> None:
        parent, work = await talk.new(KEY), key_named("work")
        boundary = New(kind=SessionKind.SUBAGENT, parent=parent)
        child = present((await talk.lifecycle.cross(work, boundary, owner="ann")).ref)
        await talk.lifecycle.accept(Inbound(work, "ann", "look it up"))
        assert not await talk.read(lambda uow: uow.slots.delegated(parent))
        ticket = present(await talk.lifecycle.begin_turn(work))
        assert await talk.read(lambda uow: uow.slots.delegated(parent))
        await talk.lifecycle.commit_turn(ticket, (), None)
        assert not await talk.read(lambda uow: uow.slots.delegated(parent))
        listed = await talk.read(lambda uow: uow.sessions.conversations(9))
        assert [session.id for session in listed] == [parent]
        everything = await talk.read(lambda uow: uow.sessions.conversations(9, delegated=True))
        assert {session.id for session in everything} == {parent, child.session_id}

    @on_store
    async def test_sessions_are_listed_by_last_activity(self, talk: StoreConversation) -> None:
        assert await talk.read(lambda uow: uow.sessions.conversations(2)) == ()
        keys = [key_named(str(n)) for n in range(5)]
        begun = [await talk.new(key) for key in keys]
        for number in (4, 1, 3, 0):
            talk.clock.time += 10.0
            await talk.say("hello", keys[number])
        for limit in (1, 2, 3, 4, 5, 9):
            listed = await talk.read(lambda uow, limit=limit: uow.sessions.conversations(limit))
            wanted = [begun[number] for number in (0, 3, 1, 4, 2)][:limit]
            assert [session.id for session in listed] == wanted

    @on_store
    async def test_discovery_goes_in_slices_and_misses_nothing(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        sessions = {await talk.new(key_named(str(n))) for n in range(7)}
        rounds = 0
        while await talk.write(lambda uow: uow.cursors.discover("p", 5.0, 3)):
            rounds += 1
        assert rounds == 3
        assert set(await talk.read(lambda uow: uow.cursors.due_sessions("p", 5.0, 99))) == sessions
        assert not await talk.write(lambda uow: uow.cursors.discover("unknown", 5.0, 3))

    @on_store
    async def test_the_longest_waiting_lane_is_due_first_and_keeps_its_backoff(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        keys = [key_named(str(n)) for n in range(3)]
        a, b, c = [await talk.new(key) for key in keys]
        await talk.discover_all(now=10.0)

        def set_due(uow: UnitOfWork) -> None:
            for session, due_at in ((a, 30.0), (b, 20.0), (c, None)):
                cursor = present(uow.cursors.get("p", session))
                uow.cursors.save(replace(cursor, seq=1, due_at=due_at, attempts=2, error="down"))

        await talk.write(set_due)
        # Every lane gets an entry: lanes with a due time keep it, the idle lane becomes due.
        for key in keys:
            await talk.say("more", key)
        assert await talk.discover_all(now=15.0) == (c,)
        waiting = present(await talk.read(lambda uow: uow.cursors.get("p", a)))
        assert (waiting.seq, waiting.due_at, waiting.attempts, waiting.error) == (1, 30.0, 2, "down")
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 30.0, 99)) == (c, b, a)
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 30.0, 2)) == (c, b)
        nexts = [await talk.read(lambda uow, t=t: uow.cursors.next_due("p", t)) for t in (0.0, 15.0, 20.0, 30.0)]
        assert nexts == [15.0, 20.0, 30.0, None]

    @on_store
    async def test_lanes_that_wait_for_a_time_far_ahead_are_due(self, talk: StoreConversation) -> None:
        await talk.write_each(("p", "q"), lambda uow, name: uow.cursors.register(name))
        due, soon, far, resting, again = [await talk.new(key_named(str(n))) for n in range(5)]
        await talk.discover_all()

        def wait(uow: UnitOfWork) -> None:
            at = {due: 90.0, soon: 100.0 + AHEAD_S_MAX, far: 101.0 + AHEAD_S_MAX, resting: None, again: None}
            for session, due_at in at.items():
                cursor = present(uow.cursors.get("p", session))
                uow.cursors.save(replace(cursor, seq=1, due_at=due_at, attempts=2, error="down"))
            uow.cursors.add_redelivery(Redelivery("p", resting, 1, 0, "rejected"))
            uow.cursors.add_redelivery(Redelivery("p", again, 1, 0, "down", attempts=2, due_at=9000.0))

        await talk.write(wait)
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 100.0, 9)) == (due, far, again)
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 100.0, 2)) == (due, far)
        assert await talk.read(lambda uow: uow.cursors.due_sessions("p", 101.0, 9)) == (due, again)

    @on_store
    async def test_a_restarted_lane_has_a_new_replay_number(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        known, unknown = await talk.new(KEY), await talk.new(OTHER_KEY)
        await talk.discover_all()
        assert await talk.write(lambda uow: uow.cursors.new_replay("p", known)) == 1
        await talk.write(lambda uow: uow.cursors.add_redelivery(Redelivery("p", known, 1, 0, "no")))
        assert await talk.write(lambda uow: uow.cursors.restart("p", known, 7.0)) == 1
        cursor = present(await talk.read(lambda uow: uow.cursors.get("p", known)))
        assert (cursor.seq, cursor.replay, cursor.due_at) == (0, 2, 7.0)
        assert await talk.read(lambda uow: uow.cursors.redeliveries("p")) == ()
        assert await talk.write(lambda uow: uow.cursors.restart("p", None, 8.0)) == 2
        replays = [await talk.read(lambda uow, s=s: uow.cursors.get("p", s)) for s in (known, unknown)]
        assert [one.replay for one in replays if one] == [3, 1]
        assert await talk.write(lambda uow: uow.cursors.restart("p", "nobody", 8.0)) == 0

    @on_store
    async def test_a_redelivery_is_parked_or_due(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        session = (await talk.say("one", KEY)).session_id
        await talk.say("two", KEY)
        await talk.new(KEY)
        await talk.discover_all()
        parked = Redelivery("p", session, 2, 0, "rejected")
        due = Redelivery("p", session, 3, 1, "", attempts=1, due_at=20.0)
        close = Redelivery("p", session, 4, 0, "rejected")
        await talk.write_each((close, due, parked), lambda uow, r: uow.cursors.add_redelivery(r))
        assert await talk.read(lambda uow: uow.cursors.redeliveries("p", session)) == (parked, due, close)
        assert await talk.read(lambda uow: uow.cursors.parked("p", session)) == (2, 3)
        assert (await talk.read(lambda uow: uow.cursors.count("p"))).parked == 2
        assert await talk.read(lambda uow: uow.cursors.next_due("p", 10.0)) == 20.0
        again = replace(parked, due_at=11.0, attempts=3, error="retried")
        await talk.write(lambda uow: uow.cursors.add_redelivery(again))
        await talk.write(lambda uow: uow.cursors.drop_redelivery(due))
        assert await talk.read(lambda uow: uow.cursors.redeliveries("p")) == (again, close)
        assert await talk.read(lambda uow: uow.cursors.redeliveries("other")) == ()

    @on_store
    async def test_the_lag_counts_waiting_entries_discovered_or_not(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.cursors.register("p"))
        await talk.say("one", KEY)
        await talk.say("two", OTHER_KEY)
        count = await talk.read(lambda uow: uow.cursors.count("p"))
        assert (count.waiting_entries, count.parked) == (4, 0)
        await talk.discover_all()
        count = await talk.read(lambda uow: uow.cursors.count("p"))
        assert (count.waiting_entries, count.waiting_sessions) == (4, 2)
        await talk.say("three", KEY)
        assert (await talk.read(lambda uow: uow.cursors.count("p"))).waiting_entries == 5

    @on_store
    async def test_the_state_of_a_provider_is_stored(self, talk: StoreConversation) -> None:
        await talk.write_each(("q", "p"), lambda uow, n: uow.cursors.register(n))
        row = present(await talk.read(lambda uow: uow.cursors.provider("p")))
        assert (row.failures, row.open_until, row.last_error) == (0, 0.0, None)
        broken = replace(row, failures=5, open_until=50.0, last_error="down", last_error_at=20.0)
        await talk.write(lambda uow: uow.cursors.save_provider(broken))
        await talk.write(lambda uow: uow.cursors.register("p"))
        assert (await talk.read(lambda uow: uow.cursors.providers()))[0] == broken
        assert await talk.read(lambda uow: uow.cursors.provider("nobody")) is None

    # Lanes -----------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_lease_has_one_holder_until_it_expires(self, talk: StoreConversation) -> None:
        mine = present(await talk.write(lambda uow: uow.leases.acquire("lane", "me", 100.0, 10.0)))
        assert await talk.write(lambda uow: uow.leases.acquire("lane", "you", 109.0, 10.0)) is None
        assert await talk.write(lambda uow: uow.leases.renew(mine, 105.0, 10.0))
        assert await talk.write(lambda uow: uow.leases.acquire("lane", "you", 114.0, 10.0)) is None
        yours = present(await talk.write(lambda uow: uow.leases.acquire("lane", "you", 115.0, 10.0)))
        assert yours.fence > mine.fence
        with pytest.raises(Fenced):
            await talk.write(lambda uow: uow.leases.check(mine))
        await talk.write(lambda uow: uow.leases.check(yours))
        assert not await talk.write(lambda uow: uow.leases.renew(mine, 115.0, 10.0))
        await talk.write(lambda uow: uow.leases.release(mine))
        assert await talk.write(lambda uow: uow.leases.acquire("lane", "me", 116.0, 10.0)) is None
        await talk.write(lambda uow: uow.leases.release(yours))
        again = present(await talk.write(lambda uow: uow.leases.acquire("lane", "me", 116.0, 10.0)))
        assert again.fence > yours.fence
        assert await talk.write(lambda uow: uow.leases.acquire("other lane", "you", 116.0, 10.0)) is not None

    @in_loop
    async def test_one_of_many_processes_acquires_a_lease(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            got = await asyncio.gather(
                *(
                    handle.write(lambda uow, n=n: uow.leases.acquire("lane", f"holder {n}", 100.0, 10.0))
                    for n in range(10)
                    for handle in (one, two)
                )
            )
            assert len([lease for lease in got if lease]) == 1

    @on_store
    async def test_a_timer_keeps_its_earliest_time_and_is_due_in_order(self, talk: StoreConversation) -> None:
        timers = [Timer("b", 20.0, KEY), Timer("a", 30.0, OTHER_KEY), Timer("c", 10.0, KEY)]
        more = Timer("a", 9000.0, KEY), *timers, Timer("b", 25.0, OTHER_KEY)
        await talk.write_each(more, lambda uow, t: uow.leases.arm(t))
        assert await talk.read(lambda uow: uow.leases.next_timer()) == 10.0
        assert await talk.read(lambda uow: uow.leases.due_timers(20.0, 9)) == (timers[2], timers[0])
        assert await talk.read(lambda uow: uow.leases.due_timers(99.0, 1)) == (timers[2],)
        await talk.write_each(("c", "b", "a", "nobody"), lambda uow, n: uow.leases.disarm(n))
        assert await talk.read(lambda uow: uow.leases.next_timer()) is None

    @on_store
    async def test_hooks_wait_in_order_and_count_their_attempts(self, talk: StoreConversation) -> None:
        calls = [HookCall(f"hook{n}", "s1", "telegram", {"n": str(n)}) for n in range(3)]
        await talk.write_each(calls, lambda uow, c: uow.leases.add_hook(KEY, c, 5.0))
        waiting = await talk.read(lambda uow: uow.leases.hooks(2))
        assert [(hook.key, hook.call, hook.attempts) for hook in waiting] == [(KEY, call, 0) for call in calls[:2]]
        await talk.write(lambda uow: uow.leases.count_hook_attempt(waiting[0].id))
        await talk.write(lambda uow: uow.leases.drop_hook(waiting[1].id))
        left = await talk.read(lambda uow: uow.leases.hooks(9))
        assert [(hook.call.hook, hook.attempts) for hook in left] == [("hook0", 1), ("hook2", 0)]

    @on_store
    async def test_incidents_are_shown_newest_first(self, talk: StoreConversation) -> None:
        incidents = [Incident(float(n), "memory:p", None if n else "s1", f"text {n}") for n in range(3)]
        await talk.write_each(incidents, lambda uow, i: uow.incidents.add(i))
        assert await talk.read(lambda uow: uow.incidents.newest(2)) == (incidents[2], incidents[1])

    # Processes and their timers --------------------------------------------------------------------------------------

    @on_store
    async def test_a_process_is_alive_until_it_ends_or_its_lease_expires(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.leases.keep_alive("p", 100.0, 30.0))

        async def alive(holder: str, now: float) -> bool:
            return await talk.read(lambda uow: uow.leases.is_alive(holder, now))

        assert [await alive("p", 129.9), await alive("p", 130.0), await alive("q", 100.0)] == [True, False, False]
        await talk.write(lambda uow: uow.leases.end_process("p"))
        assert not await alive("p", 100.0)

    @on_store
    async def test_a_clock_set_back_neither_prolongs_a_lease_nor_takes_it_from_a_live_holder(
        self, talk: StoreConversation
    ) -> None:
        async def asked(lane: str, now: float) -> Lease | None:
            held = await talk.read(lambda uow: uow.leases.is_held(lane, now))
            lease = await talk.write(lambda uow: uow.leases.acquire(lane, "next", now, 30.0))
            assert held == (lease is None)
            return lease

        dead = present(await talk.write(lambda uow: uow.leases.acquire("dead", "a", 5000.0, 30.0)))
        living = present(await talk.write(lambda uow: uow.leases.acquire("living", "b", 5000.0, 30.0)))
        await talk.write(lambda uow: uow.leases.shorten(100.0, 30.0))
        for lane in ("dead", "living"):
            assert await asked(lane, 100.0) is None
        assert await talk.write(lambda uow: uow.leases.renew(living, 110.0, 30.0))
        assert await asked("dead", 129.0) is None
        taken = present(await asked("dead", 130.0))
        assert taken.fence > dead.fence
        assert await asked("living", 130.0) is None
        await talk.read(lambda uow: uow.leases.check(living))

    @on_store
    async def test_a_clock_set_back_keeps_no_dead_process_alive(self, talk: StoreConversation) -> None:
        await talk.write(lambda uow: uow.leases.keep_alive("dead", 5000.0, 30.0))
        await talk.write(lambda uow: uow.leases.keep_alive("living", 100.0, 30.0))
        await talk.write(lambda uow: uow.leases.acquire("long", "living", 100.0, AHEAD_S_MAX))
        await talk.write(lambda uow: uow.leases.shorten(100.0, 60.0))
        alive = {
            (name, now): await talk.read(lambda uow, n=name, t=now: uow.leases.is_alive(n, t))
            for name in ("dead", "living")
            for now in (129.0, 130.0, 159.0, 160.0)
        }
        assert [now for (name, now), there in alive.items() if there and name == "dead"] == [129.0, 130.0, 159.0]
        assert [now for (name, now), there in alive.items() if there and name == "living"] == [129.0]
        # A lease that this clock can have granted is not shortened.
        assert await talk.read(lambda uow: uow.leases.is_held("long", 99.0 + AHEAD_S_MAX))

    @on_store
    async def test_an_ended_process_releases_its_lanes_at_once(self, talk: StoreConversation) -> None:
        left = present(await talk.write(lambda uow: uow.leases.acquire("lane", "p", 100.0, 30.0)))
        kept = present(await talk.write(lambda uow: uow.leases.acquire("other lane", "q", 100.0, 30.0)))
        await talk.write(lambda uow: uow.leases.end_process("p"))
        taken = present(await talk.write(lambda uow: uow.leases.acquire("lane", "r", 101.0, 30.0)))
        assert taken.fence > left.fence
        assert await talk.write(lambda uow: uow.leases.acquire("other lane", "r", 101.0, 30.0)) is None
        await talk.read(lambda uow: uow.leases.check(kept))
        with pytest.raises(Fenced):
            await talk.read(lambda uow: uow.leases.check(left))

    @on_store
    async def test_keys_with_waiting_messages_are_listed_longest_waiting_first(self, talk: StoreConversation) -> None:
        await talk.say("answered", key_named("third"))
        for key in (OTHER_KEY, KEY, OTHER_KEY):
            await talk.accept("waits", key)
        assert await talk.read(lambda uow: uow.inbox.keys_waiting()) == (OTHER_KEY, KEY)
        await talk.lifecycle.begin_turn(KEY)
        assert await talk.read(lambda uow: uow.inbox.keys_waiting()) == (OTHER_KEY,)
