"""SessionViewContract of a session along its lineage, and its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from everthread.domain.boundary import Refusal, Rewind
from everthread.domain.errors import StoreError
from everthread.domain.events import (
    EntryKind,
    LogEntry,
    NoteWritten,
    SessionClosed,
    SessionOpened,
    SessionRewound,
    TurnCommitted,
    WorkDelegated,
)
from everthread.domain.model import (
    Cause,
    NoteAction,
    NoteTarget,
    ReplyState,
    SessionRef,
    TurnStatus,
)
from everthread.lifecycle import NoteChange
from everthread.store.unit_of_work import Store, UnitOfWork
from everthread.testing.contracts.store.fixtures import (
    KEY,
    OTHER_KEY,
    OpenStore,
    StoreConversation,
    StoreFixture,
    commit_user_message,
    event_at,
    key_named,
    on_store,
    present,
    texts_of,
)


@dataclass
class _Copy:
    """Expected view of a session as a plain list, the simplest correct model."""

    turns: list[tuple[int, str]]
    last_turn: int
    summary: str | None = None
    tip: str | None = None
    closes: dict[int, list[str]] = field(default_factory=dict[int, list[str]])

    def texts(self) -> list[str]:
        return ([f"[{self.summary}]"] if self.summary is not None else []) + [text for _, text in self.turns]


class _Tree:
    """Apply operations to both the store and the copied lists."""

    def __init__(self, talk: StoreConversation, owner: str) -> None:
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
        """Start a first or further session."""
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
                event = await self.talk.store.read(lambda uow, s=session_id, q=seq: event_at(uow, s, q))
                assert isinstance(event, SessionClosed)
                assert texts_of(event.view) == texts

    async def _go_to(self, which: int) -> str:
        if not self.copies:
            await self.start()
        target = list(self.copies)[which % len(self.copies)]
        here = present(await self.talk.lifecycle.current(self.key))
        await self._leaving(here.session_id, self.talk.resume(self.key, target, self.owner))
        while (tip := self.copies[target].tip) is not None:
            target = tip
        after = present(await self.talk.lifecycle.current(self.key))
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
        """Cross a boundary. If it closes the session, record its view."""
        before = (await self.talk.session(session_id)).closed_seq
        opened = await crossing
        after = await self.talk.session(session_id)
        if after.closed_seq != before:
            self.copies[session_id].closes[after.closed_seq + 1] = self.copies[session_id].texts()
        return opened


async def _compare_with_copies(store: Store, owner: str, ops: list[tuple[str, int, int]]) -> None:
    tree = _Tree(StoreConversation(store, f"tree of {owner}"), owner)
    try:
        for op, which, amount in ops:
            await tree.apply(op, which, amount)
        await tree.check()
    except AssertionError as error:
        error.add_note(f"the tree: {ops}")
        raise


class SessionViewContract(StoreFixture):
    # Views ------------------------------------------------------------------------------------------------------------

    @on_store
    async def test_a_branch_sees_its_parent_as_of_the_branch(self, talk: StoreConversation) -> None:
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

    @on_store
    async def test_a_later_rewind_of_the_parent_does_not_change_the_branch(self, talk: StoreConversation) -> None:
        parent = (await talk.say("one", KEY)).session_id
        for text in ("two", "three"):
            await talk.say(text, KEY)
        await talk.rewind(KEY)
        child = await talk.branch(KEY)
        await talk.resume(OTHER_KEY, parent)
        await talk.rewind(OTHER_KEY)
        assert await talk.texts(parent) == ["one"]
        assert await talk.texts(child) == ["one", "two"]

    @on_store
    async def test_a_rewind_of_inherited_turns_changes_only_the_branch(self, talk: StoreConversation) -> None:
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
        assert await talk.read(lambda uow: uow.turns.last_visible(session, 5)) == (1, 4)
        assert await talk.read(lambda uow: uow.turns.last_visible(session, 1)) == (4,)

    @on_store
    async def test_a_compressed_session_shows_its_summary_and_the_tail(self, talk: StoreConversation) -> None:
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

    @on_store
    async def test_branches_and_compressions_nest(self, talk: StoreConversation) -> None:
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

    @on_store
    async def test_hidden_and_set_aside_turns_are_never_shown_and_a_late_one_only_at_home(
        self, talk: StoreConversation
    ) -> None:
        parent = (await talk.say("one", KEY)).session_id
        hidden = await talk.begin("hidden", KEY)
        await talk.lifecycle.cross(KEY, Rewind(1), owner="ann")
        assert (await commit_user_message(talk, hidden)).status is TurnStatus.HIDDEN
        await talk.say("two", KEY)
        late = await talk.begin("late", KEY)
        await talk.accept("set aside", KEY)
        child = await talk.branch(KEY)
        done = await commit_user_message(talk, late, "too late")
        assert (done.status, done.reply and done.reply.state) == (TurnStatus.LATE, ReplyState.WITHHELD)
        await talk.say("three", KEY)
        assert await talk.texts(parent) == ["one", "two", "late"]
        assert await talk.texts(child) == ["one", "two", "three"]

        async def for_people(session_id: str, **part: int) -> list[str]:
            def look(uow: UnitOfWork) -> list[str]:
                session = present(uow.sessions.get(session_id))
                return texts_of(uow.turns.view_with_set_aside(session, **part))

            return await talk.read(look)

        # People also see messages that were set aside; hidden turns stay hidden.
        assert await for_people(parent) == ["one", "two", "set aside", "late"]
        assert await for_people(parent, after=3, up_to=4) == ["set aside"]
        assert await for_people(child) == ["one", "two", "set aside", "three"]
        kept = [await talk.read(lambda uow, n=n: uow.turns.get(parent, n)) for n in range(1, 6)]
        assert [(turn.user_text, turn.status) for turn in kept if turn] == [
            ("one", TurnStatus.DONE),
            ("hidden", TurnStatus.HIDDEN),
            ("two", TurnStatus.DONE),
            ("set aside", TurnStatus.SET_ASIDE),
            ("late", TurnStatus.LATE),
        ]

    @on_store
    async def test_a_close_has_the_view_of_the_time_it_was_written(self, talk: StoreConversation) -> None:
        parent = (await talk.say("one", KEY)).session_id
        await talk.say("two", KEY)
        await talk.new(KEY)
        await talk.resume(KEY, parent)
        await talk.rewind(KEY)
        await talk.say("three", KEY)
        await talk.new(KEY)
        closes = [e for e in await talk.entries(parent) if e.kind is EntryKind.CLOSE]
        events = [await talk.read(lambda uow, e=e: uow.log.event(e, (2, 99))) for e in closes]
        assert all(isinstance(event, SessionClosed) for event in events)
        assert [texts_of(e.view) for e in events if isinstance(e, SessionClosed)] == [
            ["one", "two"],
            ["one", "three"],
        ]
        assert [e.missing for e in events if isinstance(e, SessionClosed)] == [(2,), (2,)]

    def test_any_tree_of_sessions_shows_what_copied_lists_would(self, open_store: OpenStore) -> None:
        owners = (f"owner {number}" for number in count(1))
        ops = st.lists(st.tuples(st.sampled_from("tttrbc"), st.integers(0, 9), st.integers(0, 5)), max_size=16)

        async def compare_all(store: Store, trees: list[list[tuple[str, int, int]]]) -> None:
            # At the same time: the store commits them together, which a slow disk needs.
            async with asyncio.TaskGroup() as tasks:
                for tree in trees:
                    tasks.create_task(_compare_with_copies(store, next(owners), tree))

        async def opened() -> Store:
            return await open_store()

        with asyncio.Runner() as runner:
            store = runner.run(opened())

            @given(trees=st.lists(ops, min_size=5, max_size=5))
            # Not shrunk: that takes longer than the test may, and a tree of 16 steps is short enough to read.
            @settings(max_examples=16, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
            def compare(trees: list[list[tuple[str, int, int]]]) -> None:
                runner.run(compare_all(store, trees))

            try:
                compare()
            finally:
                runner.run(store.aclose())

    # The log ---------------------------------------------------------------------------------------------------------

    @on_store
    async def test_the_log_has_the_events_in_order(self, talk: StoreConversation) -> None:
        ref = await talk.say("one", KEY, answer="yes")
        await talk.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea"), owner="ann", ref=ref)
        await talk.lifecycle.record_delegation(ref, "look it up", "found", "child")
        await talk.rewind(KEY)
        child = await talk.branch(KEY)
        entries = await talk.entries(ref.session_id)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        events = [await talk.read(lambda uow, e=entry: uow.log.event(e, ())) for entry in entries]
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
        first = present(await talk.read(lambda uow: uow.log.after(child, 0)))
        assert first.detail == {"parent": ref.session_id, "reset": False, "reason": "branch"}
        last = await talk.read(lambda uow: uow.log.last_close(ref.session_id, 99))
        assert last == entries[-1]
        assert await talk.read(lambda uow: uow.log.last_close(ref.session_id, 5)) is None
        assert await talk.read(lambda uow: uow.log.entry(ref.session_id, 3)) == entries[2]

    @on_store
    async def test_heavy_entries_are_recognised_before_they_are_read(self, talk: StoreConversation) -> None:
        ref = await talk.say("short", KEY, answer="too")
        await talk.say("short", KEY, answer="é" * 1_000_000)
        await talk.branch(KEY)
        entries = await talk.entries(ref.session_id)
        light = await talk.read(lambda uow: [(entry.kind.value, uow.log.is_light(entry)) for entry in entries])
        assert light == [("opened", True), ("turn", True), ("turn", False), ("close", False)]

    @on_store
    async def test_a_position_of_a_log_is_written_once(self, talk: StoreConversation) -> None:
        entry = LogEntry(SessionRef("s1", 0, KEY, 1, "ann"), 1, EntryKind.OPENED, 5.0)
        await talk.write(lambda uow: uow.log.append(entry))
        with pytest.raises(StoreError):
            await talk.write(lambda uow: uow.log.append(entry))
        before = await talk.read(lambda uow: uow.log.end())
        await talk.write(lambda uow: uow.log.append(replace(entry, seq=2)))
        assert await talk.read(lambda uow: uow.log.end()) > before

    @on_store
    async def test_user_messages_are_listed_latest_first(self, talk: StoreConversation) -> None:
        here = (await talk.say("one", KEY, answer="an answer")).session_id
        await talk.say("two", KEY)
        await talk.say("long" * 10, KEY)
        await talk.rewind(KEY)
        await talk.new(KEY)
        await talk.say("elsewhere", KEY)

        async def asked(limit: int, chars_max: int) -> list[str]:
            return [text for _, text in await talk.read(lambda uow: uow.turns.user_messages(here, limit, chars_max))]

        assert await asked(9, 40) == ["long" * 10, "two", "one"]
        assert await asked(9, 39) == ["two", "one"]
        assert await asked(1, 39) == ["two"]
