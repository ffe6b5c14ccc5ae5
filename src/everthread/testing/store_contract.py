"""What every store must do. Subclass `StoreContract` in a test module and give it one fixture:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def open_store(self, tmp_path):
            async def open_store() -> Store:
                return await MyStore.open(tmp_path / "everthread.db")

            return open_store

Each call of `open_store` gives a fresh handle; all handles of one test are on the same, at first empty, storage. The
tests close the handles that they don't crash. `crash` may be overridden too: by default a handle crashes by being
dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.domain.boundary import Branch, Compress, New, Refusal, Resume, Rewind
from everthread.domain.errors import Busy, Fenced, Gone, NotFound, StoreError, TitleTaken
from everthread.domain.events import (
    EntryKind,
    Event,
    ForgetScope,
    Forgotten,
    LogEntry,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
    View,
    WorkDelegated,
)
from everthread.domain.model import (
    Binding,
    Cause,
    ChatType,
    Fate,
    HookCall,
    Inbound,
    InboxState,
    Kind,
    Message,
    NoteAction,
    NoteTarget,
    ReplyState,
    Role,
    Session,
    SessionKey,
    SessionRef,
    Slot,
    Timer,
    ToolCall,
    ToolState,
    Turn,
    TurnStatus,
)
from everthread.domain.policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession, Lifecycle, NoteChange, Ticket
from everthread.ports import Store, UnitOfWork
from everthread.ports.store import BoundaryRow, Hit, Incident, Redelivery
from everthread.testing import in_loop

OpenStore = Callable[[], Awaitable[Store]]

NEVER = ResetPolicies(ResetPolicy())


def key_named(chat: str, platform: str = "telegram") -> SessionKey:
    return SessionKey("main", platform, ChatType.DM, chat)


class StillClock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Talk:
    """A lifecycle on a store, and the few steps that most tests are made of."""

    def __init__(self, store: Store, holder: str = "here") -> None:
        self.store = store
        self.clock = StillClock()
        numbers = count(1)
        self.lifecycle = Lifecycle(
            store, self.clock, lambda: f"{holder}-{next(numbers):06d}", holder=holder, policies=NEVER
        )

    async def accept(self, text: str, key: SessionKey, owner: str = "ann") -> None:
        await self.lifecycle.accept(Inbound(key, owner, text))

    async def begin(self, text: str, key: SessionKey, owner: str = "ann") -> Ticket:
        await self.accept(text, key, owner)
        ticket = await self.lifecycle.begin_turn(key)
        assert ticket is not None
        return ticket

    async def say(self, text: str, key: SessionKey, owner: str = "ann", answer: str = "") -> SessionRef:
        """A whole turn: a message, and an answer to it."""
        ticket = await self.begin(text, key, owner)
        messages = [Message(Role.USER, text)] + ([Message(Role.ASSISTANT, answer)] if answer else [])
        return (await self.lifecycle.commit_turn(ticket, messages, answer or None)).ref

    async def new(self, key: SessionKey, owner: str = "ann", title: str = "") -> str:
        return _there((await self.lifecycle.cross(key, New(title), owner=owner)).ref)

    async def branch(self, key: SessionKey, owner: str = "ann") -> str:
        return _there((await self.lifecycle.cross(key, Branch(), owner=owner)).ref)

    async def resume(self, key: SessionKey, session_id: str, owner: str = "ann") -> str:
        return _there((await self.lifecycle.cross(key, Resume(session_id), owner=owner)).ref)

    async def rewind(self, key: SessionKey, turns: int = 1, owner: str = "ann") -> Refusal | None:
        return (await self.lifecycle.cross(key, Rewind(turns), owner=owner)).refusal

    async def compress(self, key: SessionKey, summary: str, covers_to: int, owner: str = "ann") -> str:
        here = await self.lifecycle.current(key)
        assert here is not None
        boundary = Compress(here.session_id, here.generation, summary, covers_to)
        return _there((await self.lifecycle.cross(key, boundary, owner=owner)).ref)

    async def session(self, session_id: str) -> Session:
        session = await self.store.read(lambda uow: uow.sessions.get(session_id))
        assert session is not None
        return session

    async def view(self, session_id: str) -> View:
        return await self.store.read(lambda uow: view_of(uow, session_id))

    async def texts(self, session_id: str) -> list[str]:
        return texts_of(await self.view(session_id))

    async def search(self, query: str, owner: str = "ann", *, limit: int = 10, ranked: bool = False) -> list[str]:
        hits = await self.store.read(lambda uow: uow.turns.search(owner, query, limit=limit, ranked=ranked))
        return [hit.content for hit in hits]


def _there(ref: SessionRef | None) -> str:
    assert ref is not None
    return ref.session_id


def view_of(uow: UnitOfWork, session_id: str) -> View:
    session = uow.sessions.get(session_id)
    assert session is not None
    return uow.turns.view(session)


def texts_of(view: View) -> list[str]:
    """The summary in brackets, then what was said in each turn."""
    return ([f"[{view.summary}]"] if view.summary is not None else []) + [turn.user_text for turn in view.turns]


def plain_session(session_id: str, owner: str = "ann", title: str | None = None) -> Session:
    return Session(session_id, owner, key_named(session_id), Kind.CHAT, Cause.NEW, 1.0, title=title)


KEY = key_named("42")
OTHER_KEY = key_named("43")


class StoreContract:
    """Every test here is a promise that the rest of the program relies on."""

    @pytest.fixture
    def open_store(self) -> OpenStore:
        raise NotImplementedError("give the contract a fixture `open_store`; see its module's docstring")

    async def crash(self, store: Store) -> None:
        """Make a handle go away as if its process had died: it must not tidy up."""

    # Units of work ----------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_unit_that_raises_leaves_nothing_behind(self, open_store: OpenStore) -> None:
        def work(uow: UnitOfWork) -> None:
            uow.sessions.add(plain_session("s1"))
            uow.sessions.bind(Binding(KEY, "ann", "s1", 1))
            raise ValueError("changed my mind")

        async with aclosing(await open_store()) as store:
            with pytest.raises(ValueError, match="changed my mind"):
                await store.write(work)
            assert await store.read(lambda uow: (uow.sessions.get("s1"), uow.sessions.binding(KEY))) == (None, None)

    @in_loop
    async def test_a_unit_that_raises_takes_no_other_with_it(self, open_store: OpenStore) -> None:
        def work(uow: UnitOfWork, number: int) -> int:
            uow.sessions.add(plain_session(f"s{number}"))
            if number % 3 == 0:
                raise ValueError(str(number))
            return number

        async with aclosing(await open_store()) as store:
            results = await asyncio.gather(
                *(store.write(lambda uow, n=n: work(uow, n)) for n in range(20)), return_exceptions=True
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

    @in_loop
    async def test_a_unit_sees_what_it_has_written(self, open_store: OpenStore) -> None:
        def work(uow: UnitOfWork) -> Session | None:
            uow.sessions.add(plain_session("s1"))
            uow.sessions.save(replace(plain_session("s1"), last_turn=7))
            return uow.sessions.get("s1")

        async with aclosing(await open_store()) as store:
            assert await store.write(work) == replace(plain_session("s1"), last_turn=7)

    @in_loop
    async def test_a_result_is_given_only_after_the_commit(self, open_store: OpenStore) -> None:
        """Whoever hears of a result finds its rows through any other handle, at once."""
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            for number in range(30):
                await store.write(lambda uow, n=number: uow.sessions.add(plain_session(f"s{n}")))
                assert await other.read(lambda uow, n=number: uow.sessions.get(f"s{n}")) is not None

    @in_loop
    async def test_what_was_reported_is_there_after_a_crash(self, open_store: OpenStore) -> None:
        store = await open_store()
        await asyncio.gather(
            *(store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n:02d}"))) for n in range(20))
        )
        await self.crash(store)
        async with aclosing(await open_store()) as after:
            found = await after.read(lambda uow: uow.sessions.matching("s", 100))
            assert [session.id for session in found] == [f"s{n:02d}" for n in range(20)]

    @in_loop
    async def test_a_write_lands_although_its_caller_stopped_waiting(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            for steps in range(1, 8):
                session = plain_session(f"s{steps}")
                task = asyncio.ensure_future(store.write(lambda uow, s=session: uow.sessions.add(s)))
                for _ in range(steps):
                    await _one_step()
                task.cancel()
                await asyncio.wait({task})
            async with asyncio.timeout(5):
                while len(await store.read(lambda uow: uow.sessions.matching("s", 100))) < 7:
                    await _one_step()

    @in_loop
    async def test_closing_finishes_what_was_handed_in(self, open_store: OpenStore) -> None:
        for steps in range(3):
            store = await open_store()
            waiting = [
                asyncio.ensure_future(store.write(lambda uow, n=n: uow.sessions.add(plain_session(f"s{n}"))))
                for n in range(20 * steps, 20 * (steps + 1))
            ]
            for _ in range(steps):
                await _one_step()
            async with asyncio.timeout(5):
                await asyncio.gather(*waiting, store.aclose())
        async with aclosing(await open_store()) as after:
            assert len(await after.read(lambda uow: uow.sessions.matching("s", 100))) == 60

    @in_loop
    async def test_a_closed_handle_says_so_and_may_be_closed_again(self, open_store: OpenStore) -> None:
        store = await open_store()
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreError):
            await store.write(lambda uow: uow.sessions.add(plain_session("s1")))
        with pytest.raises(StoreError):
            await store.read(lambda uow: uow.sessions.get("s1"))
        with pytest.raises(StoreError):
            await store.changed()

    @in_loop
    async def test_two_handles_work_side_by_side(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            await asyncio.gather(
                *(
                    handle.write(lambda uow, n=n, h=h: uow.sessions.add(plain_session(f"s-{h}-{n}")))
                    for h, handle in enumerate((one, two))
                    for n in range(40)
                )
            )
            for handle in (one, two):
                assert len(await handle.read(lambda uow: uow.sessions.matching("s-", 100))) == 80

    @in_loop
    async def test_a_read_sees_one_moment_only(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            await other.write(lambda uow: uow.sessions.add(plain_session("s1")))
            loop, thread = asyncio.get_running_loop(), threading.get_ident()

            def look(uow: UnitOfWork) -> tuple[int, int]:
                before = len(uow.sessions.matching("s", 10))
                # A store that reads in the event loop's own thread lets nobody in between anyway.
                if threading.get_ident() != thread:
                    writing = other.write(lambda uow: uow.sessions.add(plain_session("s2")))
                    asyncio.run_coroutine_threadsafe(_awaited(writing), loop).result(timeout=5)
                return before, len(uow.sessions.matching("s", 10))

            assert await store.read(look) == (1, 1)
            await other.write(lambda uow: uow.sessions.add(plain_session("s3")))
            assert await store.read(lambda uow: uow.sessions.get("s3")) is not None

    @in_loop
    async def test_a_commit_by_anyone_shows_in_the_change_number(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store, aclosing(await open_store()) as other:
            await store.write(lambda uow: uow.sessions.add(plain_session("s0")))
            numbers = [await store.changed()]
            assert await store.changed() == numbers[0]
            await other.write(lambda uow: uow.sessions.add(plain_session("s1")))
            numbers.append(await store.changed())
            await store.write(lambda uow: uow.sessions.add(plain_session("s2")))
            numbers.append(await store.changed())
            assert len(set(numbers)) == 3
            await store.read(lambda uow: uow.sessions.get("s1"))
            assert await store.changed() == numbers[-1]

    # What there is only one of ----------------------------------------------------------------------------------------

    @in_loop
    async def test_a_session_has_one_live_slot(self, open_store: OpenStore) -> None:
        def slot(turn_id: str, fate: Fate, session_id: str = "s1") -> Slot:
            return Slot(turn_id, SessionRef(session_id, 0, KEY, 1, "ann"), "here", 1, fate, 1, 1.0)

        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.slots.add(slot("t1", Fate.LIVE)))
            with pytest.raises(StoreError):
                await store.write(lambda uow: uow.slots.add(slot("t2", Fate.LIVE)))
            await store.write(lambda uow: uow.slots.add(slot("t3", Fate.LATE)))
            await store.write(lambda uow: uow.slots.add(slot("t4", Fate.LIVE, "s2")))
            await store.write(lambda uow: uow.slots.set_fate("t1", Fate.LATE))
            await store.write(lambda uow: uow.slots.add(slot("t2", Fate.LIVE)))
            live, all_of_it = await store.read(lambda uow: (uow.slots.live("s1"), uow.slots.of_session("s1")))
            assert live == slot("t2", Fate.LIVE)
            assert [one.turn_id for one in all_of_it] == ["t1", "t2", "t3"]

    @in_loop
    async def test_a_title_is_one_session_of_its_owner(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.sessions.add(plain_session("s1", title="Straße")))
            with pytest.raises(StoreError):
                await store.write(lambda uow: uow.sessions.add(plain_session("s2", title="STRASSE")))
            await store.write(lambda uow: uow.sessions.add(plain_session("s3", "bob", title="Straße")))
            await store.write(lambda uow: uow.sessions.add(plain_session("s4")))
            await store.write(lambda uow: uow.sessions.add(plain_session("s5")))
            with pytest.raises(StoreError):
                await store.write(lambda uow: uow.sessions.set_title("s4", "straße"))
            await store.write(lambda uow: uow.sessions.set_title("s1", None))
            await store.write(lambda uow: uow.sessions.set_title("s4", "straße"))

    @in_loop
    async def test_of_many_who_want_a_title_one_gets_it(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [Talk(one, "one"), Talk(two, "two")]
            results = await asyncio.gather(
                *(talk.new(key_named(f"{n}-{t}"), title="Trip") for t, talk in enumerate(talks) for n in range(5)),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, BaseException)]
            assert len(refused) == 9
            assert all(isinstance(error, TitleTaken) for error in refused)

    @in_loop
    async def test_an_update_of_a_platform_is_taken_once(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            same = Inbound(KEY, "ann", "hello", account="bot", update_id="7")
            taken = await asyncio.gather(
                *(handle.write(lambda uow: uow.inbox.accept(same, 5.0)) for handle in (one, two) for _ in range(10))
            )
            assert sum(new for _, new in taken) == 1
            assert len({row.id for row, _ in taken}) == 1
            assert {row.inbound for row, _ in taken} == {same}
            for different in (
                replace(same, account="other bot"),
                replace(same, key=key_named("42", "matrix")),
                replace(same, update_id="8"),
                replace(same, update_id=None),
                replace(same, update_id=None),
            ):
                assert (await one.write(lambda uow, i=different: uow.inbox.accept(i, 6.0)))[1]
            assert len(await two.read(lambda uow: uow.inbox.waiting(KEY))) == 5

    @in_loop
    async def test_of_fifty_crossings_at_once_each_has_an_epoch_of_its_own(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [Talk(one, "one"), Talk(two, "two")]
            crossings = await asyncio.gather(
                *(talks[n % 2].lifecycle.cross(KEY, New(), owner="ann") for n in range(50))
            )
            assert sorted(c.ref.epoch for c in crossings if c.ref) == list(range(1, 51))
            trail = await one.read(lambda uow: uow.sessions.boundaries(limit=100))
            # Newest first, and each leaves what the one before had opened.
            assert [row.epoch for row in trail] == list(range(50, 0, -1))
            assert [row.from_session for row in trail[:-1]] == [row.to_session for row in trail[1:]]
            open_now = [s for s in await one.read(lambda uow: uow.sessions.of_owner("ann")) if s.ended_at is None]
            assert [s.id for s in open_now] == [trail[0].to_session]

    @in_loop
    async def test_of_many_who_begin_a_turn_one_gets_the_ticket(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            talks = [Talk(one, "one"), Talk(two, "two")]
            for text in ("first", "second"):
                await talks[0].accept(text, KEY)
            results = await asyncio.gather(
                *(talks[n % 2].lifecycle.begin_turn(KEY) for n in range(20)), return_exceptions=True
            )
            tickets = [result for result in results if isinstance(result, Ticket)]
            assert [ticket.message.inbound.text for ticket in tickets] == ["first"]
            assert all(isinstance(result, Busy) for result in results if not isinstance(result, Ticket))

    # A running turn ---------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_turn_of_a_dead_process_goes_to_one_other(self, open_store: OpenStore) -> None:
        dying = await open_store()
        talk = Talk(dying, "dying")
        ticket = await talk.begin("hello", KEY)
        await talk.lifecycle.start_tool(ticket, "c1", "search", "{}")
        await talk.lifecycle.start_tool(ticket, "c2", "send", "{}")
        await talk.lifecycle.finish_tool(ticket, "c1", "found")
        await self.crash(dying)
        async with aclosing(await open_store()) as store:
            heir = Talk(store, "heir")
            assert await heir.lifecycle.recover() == ()
            heir.clock.time += 60
            assert await heir.lifecycle.recover() == (ticket.turn_id,)
            taken = await heir.lifecycle.resume_turn(ticket.turn_id)
            assert taken is not None
            assert taken.fence > ticket.fence
            assert [(tool.call_id, tool.state, tool.result) for tool in taken.tools] == [
                ("c1", ToolState.DONE, "found"),
                ("c2", ToolState.STARTED, None),
            ]
            assert await heir.lifecycle.resume_turn(ticket.turn_id) is None
            with pytest.raises(Fenced):
                await heir.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], None)
            await heir.lifecycle.commit_turn(taken, [Message(Role.USER, "hello")], "hi")
            assert await heir.texts(ticket.ref.session_id) == ["hello"]
            assert await store.read(lambda uow: uow.slots.tools(ticket.turn_id)) == ()
            with pytest.raises(Fenced):
                await heir.lifecycle.commit_turn(taken, [Message(Role.USER, "hello")], "hi")

    @in_loop
    async def test_a_process_that_is_there_or_has_left_is_told_apart(self, open_store: OpenStore) -> None:
        slot = Slot("t1", SessionRef("s1", 0, KEY, 1, "ann"), "here", 1, Fate.LIVE, 1, 1.0)
        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.slots.add(slot))
            assert await store.read(lambda uow: uow.slots.orphans(100.0)) == (slot,)
            await store.write(lambda uow: uow.lanes.keep_alive("here", 100.0, 10.0))
            assert await store.read(lambda uow: uow.slots.orphans(109.0)) == ()
            assert await store.read(lambda uow: uow.slots.orphans(110.0)) == (slot,)
            await store.write(lambda uow: uow.lanes.keep_alive("here", 108.0, 10.0))
            assert await store.read(lambda uow: uow.slots.orphans(110.0)) == ()
            await store.write(lambda uow: uow.lanes.leave("here"))
            assert await store.read(lambda uow: uow.slots.orphans(110.0)) == (slot,)

    @in_loop
    async def test_messages_wait_in_the_order_they_came(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            rows = [
                (await store.write(lambda uow, t=text, k=key: uow.inbox.accept(Inbound(k, "ann", t), 5.0)))[0]
                for text, key in (("a", KEY), ("elsewhere", OTHER_KEY), ("b", KEY), ("c", KEY))
            ]
            a, _, b, c = rows
            assert await store.read(lambda uow: uow.inbox.waiting(KEY)) == (a, b, c)
            assert await store.read(lambda uow: uow.inbox.waiting(KEY, before_id=c.id)) == (a, b)
            await store.write(lambda uow: uow.inbox.set_state(a.id, InboxState.RUNNING, "s1", "t1"))
            assert await store.read(lambda uow: uow.inbox.first_waiting(KEY)) == b
            running = replace(a, state=InboxState.RUNNING, session_id="s1", turn_id="t1")
            assert await store.read(lambda uow: uow.inbox.get(a.id)) == running

    @in_loop
    async def test_a_reply_keeps_its_platform_id_from_draft_to_sent(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            ticket = await talk.begin("hello", KEY)
            await talk.lifecycle.draft_reply(ticket, "h", "platform-9")
            await talk.lifecycle.draft_reply(ticket, "hi the")
            await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], "hi there")
            reply = await store.read(lambda uow: uow.inbox.reply(ticket.turn_id))
            assert reply is not None
            assert (reply.text, reply.state, reply.platform_message_id) == ("hi there", ReplyState.READY, "platform-9")
            assert await store.read(lambda uow: uow.inbox.replies(ReplyState.READY, 10)) == (reply,)
            await store.write(lambda uow: uow.inbox.put_reply(replace(reply, state=ReplyState.SENT)))
            assert await store.read(lambda uow: uow.inbox.replies(ReplyState.READY, 10)) == ()

    @in_loop
    async def test_a_turn_comes_back_as_it_was_stored(self, open_store: OpenStore) -> None:
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
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            ticket = await talk.begin("hello", KEY)
            done = await talk.lifecycle.commit_turn(ticket, messages, None)
            expected = Turn(
                ticket.ref.session_id, 1, ticket.turn_id, TurnStatus.DONE, talk.clock.time, messages, inherited=False
            )
            assert (await talk.view(done.ref.session_id)).turns == (expected,)
            assert await store.read(lambda uow: uow.turns.get(done.ref.session_id, 1)) == expected
            assert await store.read(lambda uow: uow.turns.get(done.ref.session_id, 2)) is None

    @in_loop
    async def test_a_prefix_is_stored_byte_for_byte_and_numbered(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            ref = await talk.say("hello", KEY)
            contents = [b"\x00\xff system \r\n", "naïve".encode()]
            for content in contents:
                await talk.lifecycle.put_prefix(ref, content)
            last = await store.read(lambda uow: uow.turns.prefix(ref.session_id))
            assert last is not None
            assert (last.number, last.content) == (2, contents[1])

    @in_loop
    async def test_spend_counts_what_is_reserved_until_it_is_settled(self, open_store: OpenStore) -> None:
        ref = SessionRef("s1", 0, KEY, 1, "ann")
        async with aclosing(await open_store()) as store:
            first = await store.write(lambda uow: uow.spend.reserve(ref, "t1", "large", 1.0, 100.0))
            await store.write(lambda uow: uow.spend.reserve(ref, "t1", "large", 0.5, 200.0))
            await store.write(lambda uow: uow.spend.reserve(replace(ref, owner="bob"), "t2", "large", 9.0, 200.0))
            assert await store.read(lambda uow: uow.spend.total("ann", 0.0)) == 1.5
            await store.write(lambda uow: uow.spend.settle(first, 0.25))
            assert await store.read(lambda uow: uow.spend.total("ann", 0.0)) == 0.75
            assert await store.read(lambda uow: uow.spend.total("ann", 150.0)) == 0.5
            assert await store.read(lambda uow: uow.spend.total("nobody", 0.0)) == 0.0

    # Sessions ---------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_sessions_are_found_by_tip_title_prefix_and_age(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
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

            await store.read(look)

    @in_loop
    async def test_the_audit_trail_keeps_every_crossing(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            rows = [
                BoundaryRow("new", KEY, "ann", None if n == 0 else f"s{n}", f"s{n + 1}", n, "user", float(n))
                for n in range(3)
            ]
            ids = [await store.write(lambda uow, r=row: uow.sessions.add_boundary(r)) for row in rows]
            stored = [replace(row, id=number) for row, number in zip(rows, ids, strict=True)]
            assert list(await store.read(lambda uow: uow.sessions.boundaries(limit=2))) == stored[:0:-1]
            assert (
                list(await store.read(lambda uow: uow.sessions.boundaries(limit=9, session_id="s1"))) == stored[1::-1]
            )
            assert await store.read(lambda uow: uow.sessions.boundary(ids[1])) == stored[1]
            assert await store.read(lambda uow: uow.sessions.boundary(max(ids) + 1)) is None

    @in_loop
    async def test_who_has_served_a_session_is_known_until_it_is_finalized(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:

            def serve(uow: UnitOfWork) -> None:
                for holder, session in (("one", "s1"), ("one", "s2"), ("one", "s1"), ("two", "s1")):
                    uow.sessions.serve(holder, session, KEY)

            await store.write(serve)
            assert await store.read(lambda uow: uow.sessions.served("one")) == (("s1", KEY), ("s2", KEY))
            await store.write(lambda uow: uow.sessions.serving_moved("s2", "s3"))
            assert await store.read(lambda uow: uow.sessions.is_served("one", "s3"))
            await store.write(lambda uow: uow.sessions.finalized("s1"))
            assert await store.read(lambda uow: uow.sessions.served("one")) == (("s3", KEY),)
            assert not await store.read(lambda uow: uow.sessions.is_served("two", "s1"))

    # Views ------------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_branch_sees_its_parent_as_of_the_branch(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            await talk.say("two", KEY)
            child = await talk.branch(KEY)
            await talk.resume(OTHER_KEY, parent)
            await talk.say("parent goes on", OTHER_KEY)
            await talk.say("child goes on", KEY)
            assert await talk.texts(parent) == ["one", "two", "parent goes on"]
            assert await talk.texts(child) == ["one", "two", "child goes on"]
            turns = (await talk.view(child)).turns
            assert [(turn.session_id, turn.inherited) for turn in turns] == [
                (parent, True),
                (parent, True),
                (child, False),
            ]

    @in_loop
    async def test_what_the_parent_takes_back_later_stays_in_the_branch(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            for text in ("two", "three"):
                await talk.say(text, KEY)
            await talk.rewind(KEY)
            child = await talk.branch(KEY)
            await talk.resume(OTHER_KEY, parent)
            await talk.rewind(OTHER_KEY)
            assert await talk.texts(parent) == ["one"]
            assert await talk.texts(child) == ["one", "two"]

    @in_loop
    async def test_a_branch_takes_back_what_it_inherited_for_itself_only(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            await talk.say("two", KEY)
            child = await talk.branch(KEY)
            await talk.say("three", KEY)
            await talk.rewind(KEY, 2)
            grandchild = await talk.branch(KEY)
            await talk.say("four", KEY)
            assert await talk.texts(parent) == ["one", "two"]
            assert await talk.texts(child) == ["one"]
            assert await talk.texts(grandchild) == ["one", "four"]
            session = await talk.session(grandchild)
            assert await store.read(lambda uow: uow.turns.last_visible(session, 5)) == (1, 4)
            assert await store.read(lambda uow: uow.turns.last_visible(session, 1)) == (4,)

    @in_loop
    async def test_a_compressed_session_shows_its_summary_and_the_tail(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            for text in ("two", "three", "four"):
                await talk.say(text, KEY)
            await talk.rewind(KEY)
            await talk.say("five", KEY)
            child = await talk.compress(KEY, "one and two", 2)
            await talk.say("six", KEY)
            assert await talk.texts(parent) == ["one", "two", "three", "five"]
            assert await talk.texts(child) == ["[one and two]", "three", "five", "six"]
            await talk.rewind(KEY, 9)
            assert await talk.texts(child) == ["[one and two]"]
            assert await talk.rewind(KEY) is Refusal.NOTHING_THERE

    @in_loop
    async def test_branches_and_compressions_nest(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            root = (await talk.say("one", KEY)).session_id
            await talk.say("two", KEY)
            branch = await talk.branch(KEY)
            await talk.say("three", KEY)
            squeezed = await talk.compress(KEY, "one", 1)
            await talk.say("four", KEY)
            leaf = await talk.branch(KEY)
            await talk.say("five", KEY)
            await talk.rewind(KEY, 3)
            await talk.say("six", KEY)
            again = await talk.compress(KEY, "one to six", 6)
            assert await talk.texts(root) == ["one", "two"]
            assert await talk.texts(branch) == ["one", "two", "three"]
            assert await talk.texts(squeezed) == ["[one]", "two", "three", "four"]
            assert await talk.texts(leaf) == ["[one]", "two", "six"]
            assert await talk.texts(again) == ["[one to six]"]

    @in_loop
    async def test_hidden_and_set_aside_turns_are_never_shown_and_a_late_one_only_at_home(
        self, open_store: OpenStore
    ) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            hidden = await talk.begin("hidden", KEY)
            await talk.lifecycle.cross(KEY, Rewind(1), owner="ann")
            assert (await _commit(talk, hidden)).status is TurnStatus.HIDDEN
            await talk.say("two", KEY)
            late = await talk.begin("late", KEY)
            await talk.accept("set aside", KEY)
            child = await talk.branch(KEY)
            done = await _commit(talk, late, "too late")
            assert (done.status, done.reply and done.reply.state) == (TurnStatus.LATE, ReplyState.WITHHELD)
            await talk.say("three", KEY)
            assert await talk.texts(parent) == ["two", "late"]
            assert await talk.texts(child) == ["two", "three"]
            kept = [await store.read(lambda uow, n=n: uow.turns.get(parent, n)) for n in range(1, 6)]
            assert [(turn.user_text, turn.status) for turn in kept if turn] == [
                ("one", TurnStatus.DONE),
                ("hidden", TurnStatus.HIDDEN),
                ("two", TurnStatus.DONE),
                ("set aside", TurnStatus.SET_ASIDE),
                ("late", TurnStatus.LATE),
            ]

    @in_loop
    async def test_a_close_hands_over_what_was_shown_when_it_was_written(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            parent = (await talk.say("one", KEY)).session_id
            await talk.say("two", KEY)
            await talk.new(KEY)
            await talk.resume(KEY, parent)
            await talk.rewind(KEY)
            await talk.say("three", KEY)
            await talk.new(KEY)
            closes = [e for e in await _log(store, parent) if e.kind is EntryKind.CLOSE]
            events = [await store.read(lambda uow, e=e: uow.log.event(e, (2, 99))) for e in closes]
            assert all(isinstance(event, SessionClosed) for event in events)
            assert [texts_of(e.view) for e in events if isinstance(e, SessionClosed)] == [
                ["one", "two"],
                ["one", "three"],
            ]
            assert [e.missing for e in events if isinstance(e, SessionClosed)] == [(2,), (2,)]

    @given(ops=st.lists(st.tuples(st.sampled_from("tttrbc"), st.integers(0, 9), st.integers(0, 5)), max_size=16))
    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        # Every example has sessions of its own, so the storage may be shared.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    def test_any_tree_of_sessions_shows_what_copied_lists_would(
        self, open_store: OpenStore, ops: list[tuple[str, int, int]]
    ) -> None:
        asyncio.run(_compare_with_copies(open_store, ops))

    # The log ----------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_the_log_tells_what_happened_in_order(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            ref = await talk.say("one", KEY, answer="yes")
            await talk.lifecycle.write_note(
                NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea"), owner="ann", ref=ref
            )
            await talk.lifecycle.record_delegation(ref, "look it up", "found", "child")
            await talk.rewind(KEY)
            child = await talk.branch(KEY)
            entries = await _log(store, ref.session_id)
            assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
            events = [await store.read(lambda uow, e=entry: uow.log.event(e, ())) for entry in entries]
            opened, turn, note, delegated, rewound, closed = events
            assert isinstance(opened, SessionOpened)
            assert (opened.parent_id, opened.reset, opened.reason) == ("", True, Cause.NEW)
            assert isinstance(turn, TurnCommitted)
            assert (turn.turn.user_text, turn.turn.assistant_text, turn.ref) == ("one", "yes", ref)
            assert isinstance(note, NoteWritten)
            assert note.note.content == "likes tea"
            assert isinstance(delegated, WorkDelegated)
            assert (delegated.task, delegated.result, delegated.child_session_id) == ("look it up", "found", "child")
            assert isinstance(rewound, SessionRewound)
            assert rewound.turns == (1,)
            assert isinstance(closed, SessionClosed)
            assert (closed.view.turns, closed.through_seq) == ((), 5)
            first = await store.read(lambda uow: uow.log.after(child, 0))
            assert first is not None
            assert first.detail == {"parent": ref.session_id, "reset": False, "reason": "branch"}
            last = await store.read(lambda uow: uow.log.last_close(ref.session_id, 99))
            assert last == entries[-1]
            assert await store.read(lambda uow: uow.log.last_close(ref.session_id, 5)) is None
            assert await store.read(lambda uow: uow.log.entry(ref.session_id, 3)) == entries[2]

    @in_loop
    async def test_a_position_of_a_log_is_written_once(self, open_store: OpenStore) -> None:
        entry = LogEntry(SessionRef("s1", 0, KEY, 1, "ann"), 1, EntryKind.OPENED, 5.0)
        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.log.append(entry))
            with pytest.raises(StoreError):
                await store.write(lambda uow: uow.log.append(entry))
            before = await store.read(lambda uow: uow.log.end())
            await store.write(lambda uow: uow.log.append(replace(entry, seq=2)))
            assert await store.read(lambda uow: uow.log.end()) > before

    # Search -----------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_search_finds_all_words_newest_first(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            texts = ["the green boat", "a boat, green as grass", "the red boat", "Grüne Boote"]
            for text in texts:
                await talk.say(text, KEY)
            assert await talk.search("boat") == [texts[2], texts[1], texts[0]]
            assert await talk.search("GREEN boat") == [texts[1], texts[0]]
            assert await talk.search('"green boat"') == [texts[0]]
            assert await talk.search("grune") == [texts[3]]
            assert await talk.search("boo*") == [texts[3]]
            assert await talk.search("boat", limit=1) == [texts[2]]
            assert await talk.search("yacht") == []
            hit = (await store.read(lambda uow: uow.turns.search("ann", "red", limit=1)))[0]
            session = _there(await talk.lifecycle.current(KEY))
            assert hit == Hit(session, 3, 0, "user", "the red boat", talk.clock.time)

    @in_loop
    async def test_search_finds_parts_of_unspaced_text(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            for text in ("私は東京都に住んでいます", "京都へ行く", "서울에서 만나요"):
                await talk.say(text, KEY)
            assert await talk.search("東京都") == ["私は東京都に住んでいます"]
            assert await talk.search("京都") == ["京都へ行く", "私は東京都に住んでいます"]
            assert await talk.search("京") == ["京都へ行く", "私は東京都に住んでいます"]
            assert await talk.search("서울") == ["서울에서 만나요"]
            assert await talk.search("大阪") == []

    @in_loop
    async def test_search_never_crosses_from_one_owner_to_another(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await talk.say("ann's secret", KEY, "ann")
            await talk.say("bob's secret", OTHER_KEY, "bob")
            for ranked in (False, True):
                assert await talk.search("secret", "ann", ranked=ranked) == ["ann's secret"]
                assert await talk.search("secret", "bob", ranked=ranked) == ["bob's secret"]
                for nosy in ("an", "ann ", "ANN", "%", "", "ann OR bob"):
                    assert await talk.search("secret", nosy, ranked=ranked) == []
            assert await talk.search('secret" OR scope : "', "ann") == []
            # However much somebody else has said since.
            for n in range(20):
                await talk.say(f"bob's secret {n}", OTHER_KEY, "bob")
            for ranked in (False, True):
                assert await talk.search("secret", "ann", limit=1, ranked=ranked) == ["ann's secret"]

    @in_loop
    async def test_a_ranked_search_puts_the_best_first(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await talk.say("tea tea tea", KEY)
            for n in range(5):
                await talk.say(f"we spoke of many things, of ships and wax and also of tea, on day {n}", KEY)
            assert (await talk.search("tea", ranked=True))[0] == "tea tea tea"
            assert await talk.search("tea", ranked=True, limit=1) == ["tea tea tea"]
            assert (await talk.search("tea"))[-1] == "tea tea tea"

    @in_loop
    async def test_any_query_is_answered(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await talk.say('so "it" goes AND NOT (well) near*', KEY)
            for query in ("", " ", '"', "*", "AND", "NOT", "NEAR(", "a:b", "^x", "-", "\x00", "(" * 99, "x " * 999):
                await talk.search(query)
            assert len(await talk.search("AND NOT")) == 1

    # Forgetting -------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_forgotten_session_is_found_nowhere_and_stays_gone(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            session = await talk.new(KEY, title="Zanzibar")
            ref = await talk.say("zanzibar please", KEY, answer="zanzibar it is")
            await talk.lifecycle.put_prefix(ref, b"zanzibar")
            note = await talk.lifecycle.write_note(
                NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "zanzibar in May"), owner="ann", ref=ref
            )
            child = await talk.compress(KEY, "all about zanzibar", 1)
            await talk.say("and zanzibar again", KEY)
            await talk.say("zanzibar too", OTHER_KEY)
            assert await talk.lifecycle.forget(ForgetSession(session), owner="ann") == 1
            assert await talk.search("zanzibar") == ["zanzibar too", "and zanzibar again"]
            assert "zanzibar" not in str(await talk.view(session))
            assert await talk.texts(child) == ["[[forgotten]]", "and zanzibar again"]

            def look(uow: UnitOfWork) -> None:
                assert uow.turns.prefix(session) is None
                assert uow.notes.current("ann", NoteTarget.MEMORY) == ()
                assert "zanzibar" not in str(uow.notes.versions(note.note_id))
                assert uow.forgetting.buried("session", session)
                assert not uow.forgetting.buried("session", child)
                assert "Zanzibar" not in [s.title for s in uow.sessions.titled("ann", "Zanzibar")]
                entry = uow.log.entry(session, uow.sessions.get(session).forgotten_seq or 0)  # pyright: ignore[reportOptionalMemberAccess]
                assert entry is not None
                assert isinstance(uow.log.event(entry, ()), Forgotten)

            await store.read(look)
            with pytest.raises(Gone):
                await talk.resume(KEY, session)

    @in_loop
    async def test_a_forgotten_person_leaves_nothing_and_nobody_else_is_touched(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await talk.say("zanzibar", KEY)
            await talk.say("zanzibar", OTHER_KEY, "bob")
            await talk.accept("zanzibar waits", KEY)
            for owner in ("ann", "bob"):
                await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "zanzibar"), owner=owner)
            assert await talk.lifecycle.forget(ForgetOwner(), owner="ann") == 1
            assert await talk.search("zanzibar", "ann") == []
            assert await talk.search("zanzibar", "bob") == ["zanzibar"]
            notes = [await store.read(lambda uow, o=o: uow.notes.current(o, NoteTarget.USER)) for o in ("ann", "bob")]
            assert [len(one) for one in notes] == [0, 1]
            assert await store.read(lambda uow: uow.inbox.first_waiting(KEY)) is None
            assert await store.read(lambda uow: uow.forgetting.buried("owner", "ann"))

    @in_loop
    async def test_a_forgotten_fact_loses_its_words_wherever_they_stand(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            fact = 'the code is "4711"'
            ref = await talk.say(f"remember: {fact}!", KEY, answer=f"noted, {fact}")
            await talk.say(fact, OTHER_KEY, "bob")
            await talk.lifecycle.put_prefix(ref, f"system: {fact}".encode())
            note = await talk.lifecycle.write_note(
                NoteChange(NoteAction.ADD, NoteTarget.USER, fact), owner="ann", ref=ref
            )
            await talk.lifecycle.record_delegation(ref, f"use that {fact}", "done", "child")
            await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
            turn = (await talk.view(ref.session_id)).turns[0]
            assert (turn.user_text, turn.assistant_text) == ("remember: [forgotten]!", "noted, [forgotten]")
            assert await talk.search("4711") == []
            assert await talk.search("4711", "bob") == [fact]
            assert await store.read(lambda uow: uow.turns.prefix(ref.session_id)) is None
            assert "4711" not in str([entry.detail for entry in await _log(store, ref.session_id)])
            assert await store.read(lambda uow: uow.notes.current("ann", NoteTarget.USER)) == ()
            with pytest.raises(NotFound):
                await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")

    @in_loop
    async def test_the_words_of_a_forgotten_fact_stay_in_the_log_until_all_providers_are_told(
        self, open_store: OpenStore
    ) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            for provider in ("one", "two"):
                await store.write(lambda uow, p=provider: uow.cursors.register(p))
            note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "4711"), owner="ann")
            await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
            entry = (await _log(store, note.session_id))[-1]
            assert await store.read(lambda uow: uow.log.event(entry, ())) == Forgotten(
                entry.ref, ForgetScope.FACT, "4711", note.note_id
            )

            async def tell(provider: str) -> Event:
                def told(uow: UnitOfWork) -> Event:
                    uow.cursors.discover(provider, 5.0, 100)
                    cursor = uow.cursors.get(provider, note.session_id)
                    assert cursor is not None
                    uow.cursors.save(replace(cursor, seq=entry.seq))
                    uow.forgetting.told(note.session_id, entry.seq)
                    left = uow.log.entry(note.session_id, entry.seq)
                    assert left is not None
                    return uow.log.event(left, ())

                return await store.write(told)

            assert await tell("one") == Forgotten(entry.ref, ForgetScope.FACT, "4711", note.note_id)
            assert await tell("two") == Forgotten(entry.ref, ForgetScope.FACT, "", note.note_id)

    @in_loop
    async def test_a_fact_that_no_provider_must_hear_of_leaves_the_log_at_once(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "4711"), owner="ann")
            await talk.lifecycle.forget(ForgetFact(note.note_id), owner="ann")
            assert "4711" not in str(await _log(store, note.session_id))

    @in_loop
    async def test_a_tombstone_stays(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            await store.write(lambda uow: uow.forgetting.bury("fact", "x", "ann", 1.0))
            await store.write(lambda uow: uow.forgetting.bury("fact", "x", "ann", 2.0))
            await self.crash(store)
        async with aclosing(await open_store()) as after:
            found = await after.read(
                lambda uow: [uow.forgetting.buried(*what) for what in (("fact", "x"), ("note", "x"), ("fact", "y"))]
            )
            assert found == [True, False, False]

    @in_loop
    async def test_purging_comes_to_an_end(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            for n in range(30):
                await talk.say(f"word{n} zanzibar", KEY)
            async with asyncio.timeout(10):
                more = await store.write(lambda uow: uow.forgetting.purge(begin=True))
                while more:
                    more = await store.write(lambda uow: uow.forgetting.purge(begin=False))
            assert len(await talk.search("zanzibar", limit=99)) == 30

    # Notes ------------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_note_keeps_all_its_versions_and_shows_the_last(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)

            async def change(action: NoteAction, content: str = "", note_id: str = "", owner: str = "ann") -> str:
                wanted = NoteChange(action, NoteTarget.USER, content, note_id)
                return (await talk.lifecycle.write_note(wanted, owner=owner)).note_id

            tea = await change(NoteAction.ADD, "likes tea")
            cake = await change(NoteAction.ADD, "likes cake")
            await change(NoteAction.ADD, "bob's own", owner="bob")
            await change(NoteAction.REPLACE, "likes green tea", tea)

            async def current(target: NoteTarget = NoteTarget.USER) -> list[str]:
                return [n.content for n in await store.read(lambda uow: uow.notes.current("ann", target))]

            assert await current() == ["likes green tea", "likes cake"]
            assert await current(NoteTarget.MEMORY) == []
            with pytest.raises(NotFound):
                await change(NoteAction.REPLACE, "mine now", tea, owner="bob")
            await change(NoteAction.REMOVE, note_id=cake)
            assert await current() == ["likes green tea"]
            versions = await store.read(lambda uow: uow.notes.versions(tea))
            assert [(v.version, v.action, v.content) for v in versions] == [
                (1, NoteAction.ADD, "likes tea"),
                (2, NoteAction.REPLACE, "likes green tea"),
            ]
            assert await store.read(lambda uow: uow.notes.get(tea)) == versions[-1]
            with pytest.raises(StoreError):
                await store.write(lambda uow: uow.notes.put(versions[0]))

    @in_loop
    async def test_what_a_file_last_looked_like_is_remembered_per_owner_and_target(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            for digest in ("abc", "def"):
                await store.write(lambda uow, d=digest: uow.notes.set_projected("ann", NoteTarget.USER, d))
            assert await store.read(lambda uow: uow.notes.projected("ann", NoteTarget.USER)) == "def"
            assert await store.read(lambda uow: uow.notes.projected("ann", NoteTarget.MEMORY)) is None
            assert await store.read(lambda uow: uow.notes.projected("bob", NoteTarget.USER)) is None

    # Cursors ----------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_new_provider_starts_at_the_ends_of_the_logs(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            ref = await talk.say("before", KEY)
            await store.write(lambda uow: uow.cursors.register("p"))
            assert await _discover(store) == ()
            await talk.say("after", KEY)
            await store.write(lambda uow: uow.cursors.register("p"))
            assert await _discover(store) == (ref.session_id,)
            cursor = await store.read(lambda uow: uow.cursors.get("p", ref.session_id))
            assert cursor is not None
            following = await store.read(lambda uow: uow.log.after(ref.session_id, cursor.seq))
            assert following is not None
            assert (following.kind, following.number) == (EntryKind.TURN, 2)

    @in_loop
    async def test_scheduled_and_delegated_work_is_never_discovered(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            for n, kind in enumerate((Kind.CRON, Kind.SUBAGENT)):
                await talk.lifecycle.cross(key_named(str(n)), New(kind=kind), owner="ann")
            chat = await talk.new(KEY)
            note = await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "tea"), owner="ann")
            assert set(await _discover(store)) == {chat, note.session_id}
            assert await store.write(lambda uow: uow.cursors.set_back("p", None, 5.0)) == 2

    @in_loop
    async def test_discovery_goes_in_slices_and_misses_nothing(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            sessions = {await talk.new(key_named(str(n))) for n in range(7)}
            rounds = 0
            while await store.write(lambda uow: uow.cursors.discover("p", 5.0, 3)):
                rounds += 1
            assert rounds == 3
            assert set(await store.read(lambda uow: uow.cursors.due_sessions("p", 5.0, 99))) == sessions
            assert not await store.write(lambda uow: uow.cursors.discover("unknown", 5.0, 3))

    @in_loop
    async def test_the_longest_waiting_lane_is_due_first_and_keeps_its_backoff(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            keys = [key_named(str(n)) for n in range(3)]
            a, b, c = [await talk.new(key) for key in keys]
            await _discover(store, now=10.0)

            def set_due(uow: UnitOfWork) -> None:
                for session, due_at in ((a, 30.0), (b, 20.0), (c, None)):
                    cursor = uow.cursors.get("p", session)
                    assert cursor is not None
                    uow.cursors.save(replace(cursor, seq=1, due_at=due_at, attempts=2, error="down"))

            await store.write(set_due)
            # An entry comes to every lane: those that wait go on waiting, the one at rest is due.
            for key in keys:
                await talk.say("more", key)
            assert await _discover(store, now=15.0) == (c,)
            waiting = await store.read(lambda uow: uow.cursors.get("p", a))
            assert waiting is not None
            assert (waiting.seq, waiting.due_at, waiting.attempts, waiting.error) == (1, 30.0, 2, "down")
            assert await store.read(lambda uow: uow.cursors.due_sessions("p", 30.0, 99)) == (c, b, a)
            assert await store.read(lambda uow: uow.cursors.due_sessions("p", 30.0, 2)) == (c, b)
            nexts = [await store.read(lambda uow, t=t: uow.cursors.next_due("p", t)) for t in (0.0, 15.0, 20.0, 30.0)]
            assert nexts == [15.0, 20.0, 30.0, None]

    @in_loop
    async def test_a_lane_that_is_set_back_starts_again_under_a_new_number(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            known, unknown = await talk.new(KEY), await talk.new(OTHER_KEY)
            await _discover(store)
            assert await store.write(lambda uow: uow.cursors.new_replay("p", known)) == 1
            await store.write(lambda uow: uow.cursors.add_redelivery(Redelivery("p", known, 1, 0, "no")))
            assert await store.write(lambda uow: uow.cursors.set_back("p", known, 7.0)) == 1
            cursor = await store.read(lambda uow: uow.cursors.get("p", known))
            assert cursor is not None
            assert (cursor.seq, cursor.replay, cursor.due_at) == (0, 2, 7.0)
            assert await store.read(lambda uow: uow.cursors.redeliveries("p")) == ()
            assert await store.write(lambda uow: uow.cursors.set_back("p", None, 8.0)) == 2
            replays = [await store.read(lambda uow, s=s: uow.cursors.get("p", s)) for s in (known, unknown)]
            assert [one.replay for one in replays if one] == [3, 1]
            assert await store.write(lambda uow: uow.cursors.set_back("p", "nobody", 8.0)) == 0

    @in_loop
    async def test_what_stands_outside_the_order_is_parked_or_due(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            session = (await talk.say("one", KEY)).session_id
            await talk.say("two", KEY)
            await talk.new(KEY)
            await _discover(store)
            parked = Redelivery("p", session, 2, 0, "rejected")
            due = Redelivery("p", session, 3, 1, "", attempts=1, due_at=20.0)
            close = Redelivery("p", session, 4, 0, "rejected")
            for row in (close, due, parked):
                await store.write(lambda uow, r=row: uow.cursors.add_redelivery(r))
            assert await store.read(lambda uow: uow.cursors.redeliveries("p", session)) == (parked, due, close)
            assert await store.read(lambda uow: uow.cursors.parked("p", session)) == (2, 3)
            assert (await store.read(lambda uow: uow.cursors.count("p"))).parked == 2
            assert await store.read(lambda uow: uow.cursors.next_due("p", 10.0)) == 20.0
            again = replace(parked, due_at=11.0, attempts=3, error="retried")
            await store.write(lambda uow: uow.cursors.add_redelivery(again))
            await store.write(lambda uow: uow.cursors.drop_redelivery(due))
            assert await store.read(lambda uow: uow.cursors.redeliveries("p")) == (again, close)
            assert await store.read(lambda uow: uow.cursors.redeliveries("other")) == ()

    @in_loop
    async def test_the_lag_counts_what_waits_found_or_not(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            talk = Talk(store)
            await store.write(lambda uow: uow.cursors.register("p"))
            await talk.say("one", KEY)
            await talk.say("two", OTHER_KEY)
            count = await store.read(lambda uow: uow.cursors.count("p"))
            assert (count.waiting_entries, count.parked) == (4, 0)
            await _discover(store)
            count = await store.read(lambda uow: uow.cursors.count("p"))
            assert (count.waiting_entries, count.waiting_sessions) == (4, 2)
            await talk.say("three", KEY)
            assert (await store.read(lambda uow: uow.cursors.count("p"))).waiting_entries == 5

    @in_loop
    async def test_what_is_known_of_a_provider_is_kept(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            for name in ("q", "p"):
                await store.write(lambda uow, n=name: uow.cursors.register(n))
            row = await store.read(lambda uow: uow.cursors.provider("p"))
            assert row is not None
            assert (row.failures, row.open_until, row.last_error) == (0, 0.0, None)
            broken = replace(row, failures=5, open_until=50.0, last_error="down", last_error_at=20.0)
            await store.write(lambda uow: uow.cursors.save_provider(broken))
            await store.write(lambda uow: uow.cursors.register("p"))
            assert (await store.read(lambda uow: uow.cursors.providers()))[0] == broken
            assert await store.read(lambda uow: uow.cursors.provider("nobody")) is None

    # Lanes ------------------------------------------------------------------------------------------------------------

    @in_loop
    async def test_a_lease_has_one_holder_until_it_runs_out(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            mine = await store.write(lambda uow: uow.lanes.acquire("lane", "me", 100.0, 10.0))
            assert mine is not None
            assert await store.write(lambda uow: uow.lanes.acquire("lane", "you", 109.0, 10.0)) is None
            assert await store.write(lambda uow: uow.lanes.renew(mine, 105.0, 10.0))
            assert await store.write(lambda uow: uow.lanes.acquire("lane", "you", 114.0, 10.0)) is None
            yours = await store.write(lambda uow: uow.lanes.acquire("lane", "you", 115.0, 10.0))
            assert yours is not None
            assert yours.fence > mine.fence
            with pytest.raises(Fenced):
                await store.write(lambda uow: uow.lanes.check(mine))
            await store.write(lambda uow: uow.lanes.check(yours))
            assert not await store.write(lambda uow: uow.lanes.renew(mine, 115.0, 10.0))
            await store.write(lambda uow: uow.lanes.release(mine))
            assert await store.write(lambda uow: uow.lanes.acquire("lane", "me", 116.0, 10.0)) is None
            await store.write(lambda uow: uow.lanes.release(yours))
            again = await store.write(lambda uow: uow.lanes.acquire("lane", "me", 116.0, 10.0))
            assert again is not None
            assert again.fence > yours.fence
            assert await store.write(lambda uow: uow.lanes.acquire("other lane", "you", 116.0, 10.0)) is not None

    @in_loop
    async def test_of_many_who_want_a_lease_one_gets_it(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as one, aclosing(await open_store()) as two:
            got = await asyncio.gather(
                *(
                    handle.write(lambda uow, n=n: uow.lanes.acquire("lane", f"holder {n}", 100.0, 10.0))
                    for n in range(10)
                    for handle in (one, two)
                )
            )
            assert len([lease for lease in got if lease]) == 1

    @in_loop
    async def test_a_timer_is_set_once_and_due_in_order(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            timers = [Timer("b", 20.0, KEY), Timer("a", 30.0, OTHER_KEY), Timer("c", 10.0, KEY)]
            for timer in (*timers, Timer("b", 5.0, OTHER_KEY)):
                await store.write(lambda uow, t=timer: uow.lanes.arm(t))
            assert await store.read(lambda uow: uow.lanes.next_timer()) == 10.0
            assert await store.read(lambda uow: uow.lanes.due_timers(20.0, 9)) == (timers[2], timers[0])
            assert await store.read(lambda uow: uow.lanes.due_timers(99.0, 1)) == (timers[2],)
            for name in ("c", "b", "a", "nobody"):
                await store.write(lambda uow, n=name: uow.lanes.disarm(n))
            assert await store.read(lambda uow: uow.lanes.next_timer()) is None

    @in_loop
    async def test_hooks_wait_in_order_and_count_their_attempts(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            calls = [HookCall(f"hook{n}", "s1", "telegram", {"n": str(n)}) for n in range(3)]
            for call in calls:
                await store.write(lambda uow, c=call: uow.lanes.add_hook(KEY, c, 5.0))
            waiting = await store.read(lambda uow: uow.lanes.hooks(2))
            assert [(hook.key, hook.call, hook.attempts) for hook in waiting] == [(KEY, call, 0) for call in calls[:2]]
            await store.write(lambda uow: uow.lanes.hook_tried(waiting[0].id))
            await store.write(lambda uow: uow.lanes.drop_hook(waiting[1].id))
            left = await store.read(lambda uow: uow.lanes.hooks(9))
            assert [(hook.call.hook, hook.attempts) for hook in left] == [("hook0", 1), ("hook2", 0)]

    @in_loop
    async def test_incidents_are_shown_newest_first(self, open_store: OpenStore) -> None:
        async with aclosing(await open_store()) as store:
            incidents = [Incident(float(n), "memory:p", None if n else "s1", f"text {n}") for n in range(3)]
            for incident in incidents:
                await store.write(lambda uow, i=incident: uow.lanes.add_incident(i))
            assert await store.read(lambda uow: uow.lanes.incidents(2)) == (incidents[2], incidents[1])


# ----------------------------------------------------------------------------------------------------------------------


async def _one_step() -> None:
    """Let the event loop go round once."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def _commit(talk: Talk, ticket: Ticket, answer: str | None = None):
    text = ticket.message.inbound.text
    return await talk.lifecycle.commit_turn(ticket, [Message(Role.USER, text)], answer)


async def _log(store: Store, session_id: str) -> list[LogEntry]:
    def read(uow: UnitOfWork) -> list[LogEntry]:
        entries: list[LogEntry] = []
        while entry := uow.log.after(session_id, entries[-1].seq if entries else 0):
            entries.append(entry)
        return entries

    return await store.read(read)


async def _discover(store: Store, now: float = 10.0) -> tuple[str, ...]:
    """Everything new is discovered; the sessions that are due then."""

    def discover(uow: UnitOfWork) -> tuple[str, ...]:
        while uow.cursors.discover("p", now, 100):
            pass
        return uow.cursors.due_sessions("p", now, 100)

    return await store.write(discover)


@dataclass
class _Copy:
    """What a session shows, kept as a list of its own: the simplest thing that could be right."""

    turns: list[tuple[int, str]]
    last_turn: int
    summary: str | None = None
    tip: str | None = None
    closes: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def texts(self) -> list[str]:
        return ([f"[{self.summary}]"] if self.summary is not None else []) + [text for _, text in self.turns]


class _Tree:
    """Carries out operations on a store and on copied lists alike."""

    def __init__(self, talk: Talk, owner: str) -> None:
        self.talk = talk
        self.owner = owner
        self.key = key_named(owner)
        self.copies: dict[str, _Copy] = {}
        self.said = 0

    async def apply(self, op: str, which: int, amount: int) -> None:
        at = await self._go_to(which)
        copy = self.copies[at]
        match op:
            case "t":
                self.said += 1
                await self.talk.say(f"turn {self.said}", self.key, self.owner)
                copy.last_turn += 1
                copy.turns.append((copy.last_turn, f"turn {self.said}"))
            case "r":
                refusal = await self.talk.rewind(self.key, amount + 1, self.owner)
                assert (refusal is None) == bool(copy.turns)
                del copy.turns[-(amount + 1) :]
            case "b":
                child = await self._leaving(at, self.talk.branch(self.key, self.owner))
                self.copies[child] = _Copy(list(copy.turns), copy.last_turn, copy.summary)
            case _:
                await self._compress(at, amount)

    async def start(self) -> None:
        """A first session, or a further one."""
        left = await self.talk.lifecycle.current(self.key)
        fresh = self.talk.new(self.key, self.owner)
        session = await (self._leaving(left.session_id, fresh) if left else fresh)
        self.copies[session] = _Copy([], 0)

    async def check(self) -> None:
        for session_id, copy in self.copies.items():
            assert await self.talk.texts(session_id) == copy.texts()
            session = await self.talk.session(session_id)
            for wanted in (1, 3, 99):
                numbers = await self.talk.store.read(lambda uow, s=session, w=wanted: uow.turns.last_visible(s, w))
                assert list(numbers) == [number for number, _ in copy.turns][-wanted:]
            for seq, texts in copy.closes.items():
                event = await self.talk.store.read(lambda uow, s=session_id, q=seq: _event_at(uow, s, q))
                assert isinstance(event, SessionClosed)
                assert texts_of(event.view) == texts

    async def _go_to(self, which: int) -> str:
        if not self.copies:
            await self.start()
        target = list(self.copies)[which % len(self.copies)]
        here = await self.talk.lifecycle.current(self.key)
        assert here is not None
        await self._leaving(here.session_id, self.talk.resume(self.key, target, self.owner))
        while (tip := self.copies[target].tip) is not None:
            target = tip
        after = await self.talk.lifecycle.current(self.key)
        assert after is not None
        assert after.session_id == target
        return target

    async def _compress(self, at: str, amount: int) -> None:
        copy = self.copies[at]
        session = await self.talk.session(at)
        covers_to = min(session.floor + amount, session.last_turn)
        summary = f"up to {covers_to}"
        child = await self._leaving(at, self.talk.compress(self.key, summary, covers_to, self.owner))
        tail = [(number, text) for number, text in copy.turns if number > covers_to]
        self.copies[child] = _Copy(tail, copy.last_turn, summary)
        copy.tip = child

    async def _leaving(self, session_id: str, crossing: Awaitable[str]) -> str:
        """Cross, and note what the session showed if that closed it."""
        before = (await self.talk.session(session_id)).closed_seq
        opened = await crossing
        after = await self.talk.session(session_id)
        if after.closed_seq != before:
            self.copies[session_id].closes[after.closed_seq + 1] = self.copies[session_id].texts()
        return opened


def _event_at(uow: UnitOfWork, session_id: str, seq: int) -> object:
    entry = uow.log.entry(session_id, seq)
    assert entry is not None
    return uow.log.event(entry, ())


async def _compare_with_copies(open_store: OpenStore, ops: list[tuple[str, int, int]]) -> None:
    async with aclosing(await open_store()) as store:
        known = await store.read(lambda uow: len(uow.sessions.recent(owner=None, limit=100_000)))
        tree = _Tree(Talk(store, f"tree{known}"), f"owner{known}")
        for op, which, amount in ops:
            await tree.apply(op, which, amount)
        await tree.check()
