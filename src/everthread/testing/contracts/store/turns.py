"""Running turns and session lists."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from everthread.domain.errors import Fenced
from everthread.domain.model import (
    Fate,
    Inbound,
    InboxState,
    Message,
    Reply,
    ReplyState,
    Role,
    Session,
    SessionRef,
    Slot,
    Thought,
    ToolCall,
    ToolState,
    Turn,
    TurnStatus,
)
from everthread.domain.spend import ModelUsage, SpendEntry
from everthread.store.sessions import BoundaryRow
from everthread.store.unit_of_work import UnitOfWork
from everthread.testing import in_loop
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    OpenStore,
    StoreConversation,
    StoreFixture,
    on_store,
    present,
)


class TurnContract(StoreFixture):
    # Running turns ---------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_turn_of_a_dead_process_is_taken_over_once(self, open_store: OpenStore) -> None:
        dying = await open_store()
        talk = StoreConversation(dying, "dying")
        ticket = await talk.begin("hello", KEY)
        thought = Thought('{"why": "\\"so\\""}', "a/one")
        await talk.lifecycle.start_tool(ticket, "c1", "search", "{}", thought)
        await talk.lifecycle.start_tool(ticket, "c2", "send", "{}")
        await talk.lifecycle.finish_tool(ticket, "c1", "found")
        await self.crash(dying)
        async with aclosing(await open_store()) as store:
            heir = StoreConversation(store, "heir")
            assert await heir.lifecycle.recover() == ()
            heir.clock.time += 60
            assert await heir.lifecycle.recover() == (ticket.turn_id,)
            taken = present(await heir.lifecycle.resume_turn(ticket.turn_id))
            assert taken.fence > ticket.fence
            assert [(tool.call_id, tool.state, tool.result, tool.thought) for tool in taken.tools] == [
                ("c1", ToolState.DONE, "found", thought),
                ("c2", ToolState.STARTED, None, None),
            ]
            assert await heir.lifecycle.resume_turn(ticket.turn_id) is None
            with pytest.raises(Fenced):
                await heir.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], None)
            await heir.lifecycle.commit_turn(taken, [Message(Role.USER, "hello")], "hi")
            assert await heir.texts(ticket.ref.session_id) == ["hello"]
            assert await store.read(lambda uow: uow.slots.tools(ticket.turn_id)) == ()
            with pytest.raises(Fenced):
                await heir.lifecycle.commit_turn(taken, [Message(Role.USER, "hello")], "hi")

    @on_store
    async def test_live_and_ended_processes_are_distinguished(self, talk: StoreConversation) -> None:
        slot = Slot("t1", SessionRef("s1", 0, KEY, 1, "ann"), "here", 1, Fate.LIVE, 1, 1.0)
        await talk.write(lambda uow: uow.slots.add(slot))
        assert await talk.read(lambda uow: uow.slots.orphans(100.0)) == (slot,)
        await talk.write(lambda uow: uow.leases.keep_alive("here", 100.0, 10.0))
        assert await talk.read(lambda uow: uow.slots.orphans(109.0)) == ()
        assert await talk.read(lambda uow: uow.slots.orphans(110.0)) == (slot,)
        await talk.write(lambda uow: uow.leases.keep_alive("here", 108.0, 10.0))
        assert await talk.read(lambda uow: uow.slots.orphans(110.0)) == ()
        await talk.write(lambda uow: uow.leases.end_process("here"))
        assert await talk.read(lambda uow: uow.slots.orphans(110.0)) == (slot,)

    @on_store
    async def test_messages_wait_in_order_of_arrival(self, talk: StoreConversation) -> None:
        rows = [
            (await talk.write(lambda uow, t=text, k=key: uow.inbox.accept(Inbound(k, "ann", t), 5.0)))[0]
            for text, key in (("a", KEY), ("elsewhere", OTHER_KEY), ("b", KEY), ("c", KEY))
        ]
        a, _, b, c = rows
        assert await talk.read(lambda uow: uow.inbox.waiting(KEY)) == (a, b, c)
        assert await talk.read(lambda uow: uow.inbox.waiting(KEY, before_id=c.id)) == (a, b)
        await talk.write(lambda uow: uow.inbox.assign(a.id, "s1", "t1"))
        assert await talk.read(lambda uow: uow.inbox.first_waiting(KEY)) == b
        running = replace(a, state=InboxState.RUNNING, session_id="s1", turn_id="t1")
        assert await talk.read(lambda uow: uow.inbox.get(a.id)) == running
        assert await talk.read(lambda uow: uow.inbox.of_turn(KEY, "t1")) == (running,)
        await talk.write(lambda uow: uow.inbox.assign(c.id, "s1", "t2"))
        await talk.write(lambda uow: uow.inbox.end_turn(KEY, "t1", InboxState.DONE))
        done = replace(running, state=InboxState.DONE, inbound=replace(a.inbound, text=""))
        assert await talk.read(lambda uow: uow.inbox.get(a.id)) == done
        assert await talk.read(lambda uow: uow.inbox.of_turn(KEY, "t1")) == ()
        assert [row.id for row in await talk.read(lambda uow: uow.inbox.of_turn(KEY, "t2"))] == [c.id]

    @on_store
    async def test_a_reply_keeps_its_platform_id_from_draft_to_sent(self, talk: StoreConversation) -> None:
        ticket = await talk.begin("hello", KEY)
        await talk.lifecycle.draft_reply(ticket, "h", "platform-9")
        await talk.lifecycle.draft_reply(ticket, "hi the")
        await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], "hi there")
        reply = present(await talk.read(lambda uow: uow.outbox.reply(ticket.turn_id)))
        assert (reply.text, reply.state, reply.platform_message_id) == ("hi there", ReplyState.READY, "platform-9")
        assert await talk.read(lambda uow: uow.outbox.replies(ReplyState.READY, 10)) == (reply,)
        await talk.write(lambda uow: uow.outbox.put_reply(replace(reply, state=ReplyState.SENT)))
        assert await talk.read(lambda uow: uow.outbox.replies(ReplyState.READY, 10)) == ()

    @on_store
    async def test_a_reply_keeps_the_message_it_was_sent_after(self, talk: StoreConversation) -> None:
        ticket = await talk.begin("hello", KEY)
        assert await talk.lifecycle.stored_reply(ticket.turn_id) is None
        await talk.lifecycle.draft_reply(ticket, "h", "", "0/7")
        again = await talk.lifecycle.draft_reply(ticket, "hi", "", "0/9")
        assert (again.platform_message_id, again.sent_after) == ("", "0/7"), "an earlier beginning may be out"
        assert await talk.lifecycle.stored_reply(ticket.turn_id) == again
        await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], "hi there")
        reply = present(await talk.read(lambda uow: uow.outbox.reply(ticket.turn_id)))
        assert (reply.state, reply.platform_message_id, reply.sent_after) == (ReplyState.READY, "", "0/7")
        await talk.write(lambda uow: uow.outbox.put_reply(replace(reply, sent_after="0/12")))
        kept = present(await talk.read(lambda uow: uow.outbox.reply(ticket.turn_id)))
        assert kept.sent_after == "0/12"

    @on_store
    async def test_a_sent_reply_is_found_by_its_platform_id(self, talk: StoreConversation) -> None:
        for number, message_id in enumerate(("", "11", "12", "13")):
            reply = Reply(f"t{number}", KEY, "s1", "ann", "hi", ReplyState.SENT, float(number), message_id)
            await talk.write(lambda uow, reply=reply: uow.outbox.put_reply(reply))
        for number in range(4):
            came = Inbound(KEY, "ann", "hello", message_id=f"2{number}" if number else "")
            await talk.write(lambda uow, came=came: uow.inbox.accept(came, 5.0))
        known = await talk.read(lambda uow: uow.outbox.newest_sent(2))
        assert sorted(known) == [(KEY, "12"), (KEY, "13"), (KEY, "22"), (KEY, "23")]
        found = await talk.read(lambda uow: uow.outbox.sent_as("12", 0.0))
        assert [reply.turn_id for reply in found] == ["t2"]
        assert await talk.read(lambda uow: uow.outbox.sent_as("12", 2.5)) == ()

    @on_store
    async def test_a_turn_is_read_as_it_was_stored(self, talk: StoreConversation) -> None:
        messages = (
            Message(Role.USER, "naïve 東京 🧵 \x00 \"quoted\" 'n' \r\n\ttabbed "),
            Message(
                Role.ASSISTANT,
                "",
                (ToolCall("c1", "search", '{"q": "é"}'), ToolCall("c2", "send", "")),
                reasoning="because\u2028so",
            ),
            Message(Role.TOOL, "", tool_call_id="c1", name="search"),
            Message(Role.ASSISTANT, "x" * 100_000),
        )
        ticket = await talk.begin("hello", KEY)
        done = await talk.lifecycle.commit_turn(ticket, messages, None)
        expected = Turn(
            ticket.ref.session_id, 1, ticket.turn_id, TurnStatus.DONE, talk.clock.time, messages, inherited=False
        )
        assert (await talk.view(done.ref.session_id)).turns == (expected,)
        assert await talk.read(lambda uow: uow.turns.get(done.ref.session_id, 1)) == expected
        assert await talk.read(lambda uow: uow.turns.get(done.ref.session_id, 2)) is None

    @on_store
    async def test_a_prefix_is_stored_byte_for_byte_and_numbered(self, talk: StoreConversation) -> None:
        ref = await talk.say("hello", KEY)
        contents = [b"\x00\xff system \r\n", "naïve".encode()]
        for content in contents:
            await talk.lifecycle.put_prefix(ref, content, 0)
        last = present(await talk.read(lambda uow: uow.turns.prefix(ref.session_id)))
        assert (last.number, last.content) == (2, contents[1])
        assert await talk.read(lambda uow: uow.turns.prefix_number(ref.session_id)) == 2
        assert await talk.read(lambda uow: uow.turns.prefix_number("elsewhere")) == 0

    @on_store
    async def test_spend_counts_what_is_reserved_until_it_is_settled(self, talk: StoreConversation) -> None:
        ref = SessionRef("s1", 0, KEY, 1, "ann")
        first = await talk.write(lambda uow: uow.spend.reserve(ref, "t1", "large", 1.0, 100.0))
        await talk.write(lambda uow: uow.spend.reserve(ref, "t1", "large", 0.5, 200.0))
        await talk.write(lambda uow: uow.spend.reserve(replace(ref, owner="bob"), "t2", "large", 9.0, 200.0))
        assert await talk.read(lambda uow: uow.spend.total("ann", 0.0)) == 1.5
        await talk.write(lambda uow: uow.spend.settle(SpendEntry("large", 0.25, spend_id=first), ref, "t1", 300.0))
        assert await talk.read(lambda uow: uow.spend.total("ann", 0.0)) == 0.75
        assert await talk.read(lambda uow: uow.spend.total("ann", 150.0)) == 0.5
        assert await talk.read(lambda uow: uow.spend.total("nobody", 0.0)) == 0.0

    @on_store
    async def test_spend_is_summed_by_model_for_some_or_all_sessions(self, talk: StoreConversation) -> None:
        here, there = (SessionRef(name, 0, KEY, 1, "ann") for name in ("s1", "s2"))

        def spend(uow: UnitOfWork) -> None:
            uow.spend.settle(SpendEntry("small", 0.25, 100, 10), here, "t1", 100.0)
            uow.spend.settle(SpendEntry("small", 0.25, 200, 20), there, "t2", 200.0)
            uow.spend.settle(SpendEntry("free", 0.0, 7, 1), there, "t2", 200.0)
            uow.spend.settle(SpendEntry("large", 9.0, 1, 1), replace(here, owner="bob"), "t3", 200.0)
            uow.spend.reserve(here, "t4", "large", 2.0, 300.0)

        await talk.write(spend)
        large, both, free = (
            ModelUsage("large", 1, 0, 0, 0.0, 2.0),
            ModelUsage("small", 2, 300, 30, 0.5),
            ModelUsage("free", 1, 7, 1, 0.0),
        )
        assert await talk.read(lambda uow: uow.spend.by_model("ann", 0.0)) == (large, both, free)
        late = (large, ModelUsage("small", 1, 200, 20, 0.25), free)
        assert await talk.read(lambda uow: uow.spend.by_model("ann", 150.0)) == late
        in_here = (large, ModelUsage("small", 1, 100, 10, 0.25))
        assert await talk.read(lambda uow: uow.spend.by_model("ann", 0.0, ["s1"])) == in_here
        assert await talk.read(lambda uow: uow.spend.by_model("ann", 0.0, ["s1", "s2"])) == (large, both, free)
        assert await talk.read(lambda uow: uow.spend.by_model("ann", 0.0, [])) == ()
        assert await talk.read(lambda uow: uow.spend.by_model("bob", 0.0, ["s2"])) == ()

    # Sessions --------------------------------------------------------------------------------------------------------

    @on_store
    async def test_sessions_are_found_by_tip_title_prefix_and_age(self, talk: StoreConversation) -> None:
        first = await talk.new(KEY, title="Trip")
        await talk.say("one", KEY)
        second = await talk.compress(KEY, "so far", 1)
        third = await talk.compress(KEY, "so far", 1)
        talk.clock.time += 10
        side = await talk.branch(KEY)
        talk.clock.time += 10
        other = await talk.new(OTHER_KEY, "bob", "Trip")

        def ids(sessions: Sequence[Session]) -> list[str]:
            return [session.id for session in sessions]

        def look(uow: UnitOfWork) -> None:
            tips = [uow.sessions.tip(one) for one in (first, second, third, side, "nobody")]
            assert [tip.id if tip else None for tip in tips] == [third, third, third, side, None]
            assert ids(uow.sessions.titled("ann", "TRIP")) == [first, second, third, side]
            assert [s.title for s in uow.sessions.titled("ann", "trip #2")][:3] == ["Trip", "Trip #2", "Trip #3"]
            assert ids(uow.sessions.titled("bob", "trip")) == [other]
            assert ids(uow.sessions.matching(first[:5], 3)) == sorted([first, second, third, side, other])[:3]
            assert uow.sessions.matching("%", 10) == ()
            assert ids(uow.sessions.recent(owner=None, limit=2)) == [other, side]
            assert ids(uow.sessions.recent(owner="ann", limit=1)) == [side]
            assert ids(uow.sessions.recent(owner="ann", limit=9, kind="cron")) == []
            assert set(ids(uow.sessions.of_owner("ann"))) == {first, second, third, side}
            assert set(ids(uow.sessions.descendants(second))) == {third, side}
            assert uow.sessions.keys_on(side) == (KEY,)

        await talk.read(look)

    @on_store
    async def test_sessions_are_found_by_the_beginning_of_their_titles(self, talk: StoreConversation) -> None:
        titles = ("Trip to Rome", "trip to Lisbon", "Éclairs", "", "50 % more")
        rome, lisbon, cakes, _, more = [await talk.new(KEY, title=title) for title in titles]
        await talk.new(OTHER_KEY, "bob", "Trip of bob")

        async def named(owner: str | None, beginning: str, limit: int = 9) -> list[str]:
            return [s.id for s in await talk.read(lambda uow: uow.sessions.named(owner, beginning, limit))]

        assert await named("ann", "TRIP") == [lisbon, rome]
        assert await named("ann", "trip to r") == [rome]
        assert await named("ann", "éc") == [cakes]
        assert await named("ann", "Trip", 1) == [lisbon]
        assert await named("ann", "%") == []
        assert len(await named(None, "trip")) == 3
        assert await named("ann", "") == sorted([rome, lisbon, cakes, more], reverse=True)
        assert len(await named(None, "")) == 5
        assert await named("nobody", "") == []

    @on_store
    async def test_the_audit_trail_has_every_boundary(self, talk: StoreConversation) -> None:
        rows = [
            BoundaryRow("new", KEY, "ann", None if n == 0 else f"s{n}", f"s{n + 1}", n, "user", float(n))
            for n in range(3)
        ]

        def add(uow: UnitOfWork, row: BoundaryRow) -> int:
            uow.sessions.add_boundary(row)
            return uow.sessions.last_boundary()

        ids = [await talk.write(lambda uow, r=row: add(uow, r)) for row in rows]
        stored = [replace(row, id=number) for row, number in zip(rows, ids, strict=True)]
        assert list(await talk.read(lambda uow: uow.sessions.boundaries(limit=2))) == stored[:0:-1]
        assert list(await talk.read(lambda uow: uow.sessions.boundaries(limit=9, session_id="s1"))) == stored[1::-1]
        assert await talk.read(lambda uow: uow.sessions.boundary(ids[1])) == stored[1]
        assert await talk.read(lambda uow: uow.sessions.boundary(max(ids) + 1)) is None

    @on_store
    async def test_a_session_is_served_until_it_is_finalized(self, talk: StoreConversation) -> None:
        def serve(uow: UnitOfWork) -> None:
            for holder, session in (("one", "s1"), ("one", "s2"), ("one", "s1"), ("two", "s1")):
                uow.sessions.serve(holder, session, KEY)

        await talk.write(serve)
        assert await talk.read(lambda uow: uow.sessions.served("one")) == (("s1", KEY), ("s2", KEY))
        await talk.write(lambda uow: uow.sessions.move_serving("s2", "s3"))
        assert await talk.read(lambda uow: uow.sessions.is_served("one", "s3"))
        await talk.write(lambda uow: uow.sessions.end_serving("s1"))
        assert await talk.read(lambda uow: uow.sessions.served("one")) == (("s3", KEY),)
        assert not await talk.read(lambda uow: uow.sessions.is_served("two", "s1"))
