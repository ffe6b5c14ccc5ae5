"""Scenarios of deliveries to memory providers and their sessions, with slow, failing or interrupted providers."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, QUICK, TELEGRAM, AsyncDiary, Call, CoreFixture, Gate, ThreadDiary, until

from everthread.domain.boundary import Boundary, Branch, New, Resume
from everthread.domain.errors import Rejected, Unavailable
from everthread.domain.model import (
    Inbound,
    Message,
    Role,
    SessionRef,
    TurnStatus,
)
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import RecallItem


async def boundary_named(core: CoreFixture, name: str) -> Boundary:
    return {"new": New(), "branch": Branch(), "compress": await core.compression(CLI)}[name]


async def down(call: Call) -> None:
    raise ConnectionError("down")


# --- S03: one provider raises or hangs ---


async def test_s03_other_providers_are_not_delayed_when_one_raises_and_one_hangs(tmp_path: Path) -> None:
    raising, hanging, stuck, good = (
        AsyncDiary("raising"),
        ThreadDiary("hanging"),
        AsyncDiary("stuck"),
        AsyncDiary("good"),
    )
    plain = ThreadDiary("plain")
    raising.before = down
    never = asyncio.Event()

    async def wait(call: Call) -> None:
        await never.wait()

    stuck.before = wait
    with Gate() as gate:
        hanging.before = gate.holds()
        async with CoreFixture(tmp_path, raising, hanging, stuck, good, plain) as core:
            async with asyncio.timeout(2):
                old = (await core.turn(CLI, "one")).ref.session_id
                new = (await core.cross(CLI, New())).ref
                await core.turn(CLI, "two")
            assert new is not None
            for diary in (good, plain):
                await until(lambda diary=diary: diary.book.told(old) == ["switch", "one", "end"], diary.name)
                await until(lambda diary=diary: diary.book.told(new.session_id) == ["switch", "two"], diary.name)
            for diary in (raising, hanging, stuck):
                assert diary.book.calls == []
            # The failures are reported, each under the name of its provider.
            await until(lambda: len(raising.book.begun) > 1, "it is tried again")
            for name, why in (("raising", "down"), ("hanging", "no answer within 0.1 s"), ("stuck", "no answer")):
                await core.reported(f"memory:{name}", why)
            statuses = {status.name: status for status in await core.memory.journal.status()}
            assert "down" in (statuses["raising"].last_error or "")
            assert not any("good" in incident or "plain" in incident for incident in await core.incidents())
            # After recovery, the providers have received everything.
            raising.before = stuck.before = None
            gate.open()
            await core.settled()
    for diary in (raising, hanging, stuck):
        assert diary.book.told(old) == ["switch", "one", "end"]
        assert diary.book.told(new.session_id) == ["switch", "two"]


async def test_s03_a_hanging_delivery_of_one_session_delays_no_other_session(tmp_path: Path) -> None:
    diary = ThreadDiary()
    with Gate() as gate:
        async with CoreFixture(tmp_path, diary, limits=replace(QUICK, attempt_s_max=60)) as core:
            stuck = (await core.turn(CLI, "stuck")).ref.session_id
            diary.before = gate.holds(lambda call: call.session == stuck)
            await core.turn(CLI, "more")
            await until(gate.reached.is_set)
            for number in range(3):
                await core.turn(TELEGRAM, f"free {number}")
            free = (await core.at(TELEGRAM)).session_id
            await until(lambda: diary.book.told(free) == ["switch", "free 0", "free 1", "free 2"])
            gate.open()
            await core.settled()
    assert diary.book.told(stuck) == ["switch", "stuck", "more"]


async def test_s03_a_rejected_entry_is_parked_and_after_its_retry_closed_again(
    tmp_path: Path,
) -> None:
    diary = AsyncDiary()

    async def refuse(call: Call) -> None:
        if call.text == "bad":
            raise Rejected("diary", "too odd")

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "good")).ref
        await core.turn(CLI, "bad")
        await core.cross(CLI, New())
        await core.settled()
        [status] = await core.memory.journal.status()
        assert [(row.session_id, row.seq) for row in status.parked] == [(ref.session_id, 3)]
        assert diary.book.of("on_session_end", ref.session_id)[0].more["missing"] == (3,)
        diary.before = None
        assert await core.memory.journal.retry("diary") == 1
        await until(lambda: len(diary.book.of("on_session_end", ref.session_id)) == 2)
        [status] = await core.memory.journal.status()
        assert status.parked == ()
    assert diary.book.told(ref.session_id) == ["switch", "good", "end", "bad", "end"]
    assert diary.book.of("on_session_end", ref.session_id)[1].more["missing"] == ()


async def test_s03_a_close_accepted_during_a_retry_is_repeated_after_the_missing_entry(
    tmp_path: Path,
) -> None:
    """Both entries are parked; on the retry the close is accepted first, and its acknowledgement is lost."""
    diary = AsyncDiary()
    tries: list[str] = []

    async def refuse(call: Call) -> None:
        if call.text == "bad" or call.hook == "on_session_end":
            raise Rejected("diary", "too odd")

    async def stumble(call: Call) -> None:
        tries.append(call.text or call.hook)
        if tries == ["bad"]:
            raise Unavailable("diary", "down", retry_after_s=0.03)
        if call.hook == "on_session_end" and tries.count("on_session_end") == 1:
            diary.book.keep(call)
            raise Unavailable("diary", "taken, but nobody was told", retry_after_s=0.05)

    diary.before = refuse
    async with CoreFixture(tmp_path, diary) as core:
        ref = (await core.turn(CLI, "bad")).ref
        await core.cross(CLI, New())
        await core.settled()
        diary.before = stumble
        assert await core.memory.journal.retry("diary") == 2
        await core.settled()
    assert tries[:4] == ["bad", "on_session_end", "bad", "on_session_end"]
    taken = dict.fromkeys((call.delivery.key, call.text or call.hook) for call in diary.book.calls)
    told = [what for key, what in taken if key.startswith(ref.session_id)]
    # The first accepted delivery counts; another one under the same key has no effect.
    assert told == ["on_session_switch", "on_session_end", "bad", "on_session_end"]


async def test_s03_an_outage_of_any_length_parks_nothing(tmp_path: Path) -> None:
    diary = AsyncDiary()
    diary.before = down
    async with CoreFixture(tmp_path, diary, limits=replace(QUICK, attempts_max=2)) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        await until(lambda: len([call for call in diary.book.begun if call.session == old]) > 3)
        [status] = await core.memory.journal.status()
        assert status.parked == ()
        diary.before = None
        await core.settled()
    assert diary.book.told(old) == ["switch", "one", "end"]


async def test_s03_a_provider_that_is_slow_to_initialise_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.memory.provider_calls.INITIALIZE_S_MAX", 0.02)

    class Slow(AsyncDiary):
        def initialize(self, **settings: Any) -> None:
            gate.wait()

    slow, diary = Slow("slow"), AsyncDiary()
    with Gate() as gate:
        async with CoreFixture(tmp_path, slow, diary) as core:
            ref = (await core.turn(CLI, "one")).ref
            await until(lambda: diary.book.told(ref.session_id) == ["switch", "one"])
            await core.reported("memory:slow", "not initialized within 0.02 s")
            gate.open()
            await core.settled()
    assert slow.book.told(ref.session_id) == ["switch", "one"]


# --- S06: a batch of turns is in flight when the session changes ---


@pytest.mark.parametrize("name", ["new", "branch", "compress"])
async def test_s06_turns_in_flight_are_delivered_under_their_own_session(tmp_path: Path, name: str) -> None:
    slow, quick = ThreadDiary("slow"), AsyncDiary("quick")
    with Gate() as gate:
        slow.before = gate.holds(lambda call: call.hook == "sync_turn")
        async with CoreFixture(tmp_path, slow, quick) as core:
            old = (await core.turn(CLI, "old 0")).ref.session_id
            for number in range(1, 4):
                await core.turn(CLI, f"old {number}")
            await until(gate.reached.is_set)
            crossing = await core.cross(CLI, await boundary_named(core, name))
            assert crossing.ref is not None
            new = crossing.ref.session_id
            for number in range(3):
                await core.turn(CLI, f"new {number}")
            await until(lambda: quick.book.told(new) == ["switch", "new 0", "new 1", "new 2"])
            gate.open()
            await core.settled()
    for book in (slow.book, quick.book):
        assert book.told(old) == ["switch", "old 0", "old 1", "old 2", "old 3", "end"]
        assert book.told(new) == ["switch", "new 0", "new 1", "new 2"]
        assert all(call.ref.session_id == call.session and call.ref.owner == ME for call in book.effects)


async def test_s06_a_turn_that_runs_across_a_boundary_belongs_to_its_first_session(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.lifecycle.accept(Inbound(CLI, ME, "two"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        crossing = await core.cross(CLI, New())
        assert crossing.ref is not None
        await core.turn(CLI, "three")
        late = await core.lifecycle.commit_turn(ticket, [Message(Role.USER, "two")], "re two")
        assert (late.ref.session_id, late.status) == (old, TurnStatus.LATE)
        await core.settled()
    # The boundary caused the first close; the late turn causes a second one.
    assert diary.book.told(old) == ["switch", "one", "end", "two", "end"]
    assert diary.book.told(crossing.ref.session_id) == ["switch", "three"]


# --- S07: a delayed write runs after the switch ---


async def test_s07_a_delayed_turn_and_a_delayed_note_use_the_session_of_their_commit(tmp_path: Path) -> None:
    slow = ThreadDiary()
    with Gate() as gate:
        slow.before = gate.holds(lambda call: call.hook in ("sync_turn", "on_memory_write"))
        async with CoreFixture(tmp_path, slow) as core:
            old = (await core.turn(CLI, "a turn")).ref
            await core.note("a note", old)
            await until(gate.reached.is_set)
            for _ in range(3):
                await core.cross(CLI, New())
            await core.turn(CLI, "after")
            gate.open()
            await core.settled()
    assert slow.book.told(old.session_id) == ["switch", "a turn", "a note", "end"]
    for call in slow.book.effects:
        if call.session == old.session_id:
            assert (call.ref.key, call.ref.epoch) == (CLI, old.epoch)


async def test_s07_a_note_committed_after_the_switch_belongs_to_the_turn_that_made_it(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        old = (await core.turn(CLI, "one")).ref
        crossing = await core.cross(CLI, New())
        assert crossing.ref is not None
        await core.note("a late note", old)
        await core.turn(CLI, "two")
        await core.settled()
    assert diary.book.told(old.session_id) == ["switch", "one", "end", "a late note", "end"]
    assert diary.book.told(crossing.ref.session_id) == ["switch", "two"]


# --- S11: recall started before the switch finishes after it ---


async def test_s11_recall_of_the_old_session_never_reaches_the_new_one(tmp_path: Path) -> None:
    diary = AsyncDiary()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(query: str, ref: SessionRef) -> list[RecallItem]:
        asked.set()
        await answer.wait()
        return [RecallItem(f"secret of {ref.session_id}")]

    diary.recalls = slowly
    async with AgentFixture(tmp_path, FakeModel(["first", "second"]), diary) as core:
        asking = asyncio.ensure_future(core.ask("one"))
        await asked.wait()
        old = await core.at(CLI)
        await core.cross(CLI, New())
        answer.set()
        await asking
        new = (await core.ask("two")).committed.ref
        recalled = core.model.requests[-1].recall
    assert new.session_id != old.session_id
    assert f"secret of {new.session_id}" in recalled
    assert f"secret of {old.session_id}" not in recalled


async def test_s11_a_recall_that_spans_a_boundary_is_usable_only_in_its_own_session(tmp_path: Path) -> None:
    diary = AsyncDiary()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(query: str, ref: SessionRef) -> list[RecallItem]:
        asked.set()
        await answer.wait()
        return [RecallItem("secret")]

    diary.recalls = slowly
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "one")
        ref = await core.at(CLI)
        waiting = asyncio.ensure_future(core.memory.recall("secret", ref=ref))
        await asked.wait()
        crossing = await core.cross(CLI, New())
        # A resumed session has a new generation: a recall requested before is not valid after it.
        back = await core.cross(CLI, Resume(ref.session_id))
        assert crossing.ref is not None
        assert back.ref is not None
        answer.set()
        recall = await waiting
    assert recall.usable_at(ref)
    assert not recall.usable_at(crossing.ref)
    assert not recall.usable_at(back.ref)


# --- S28: shutdown with writes still queued ---


async def test_s28_shutdown_ends_in_time_and_everything_is_delivered_after_a_restart(tmp_path: Path) -> None:
    hanging, failing, stuck = ThreadDiary("hanging"), AsyncDiary("failing"), AsyncDiary("stuck")
    failing.before = down

    async def for_ever(call: Call) -> None:
        await asyncio.Event().wait()

    stuck.before = for_ever
    with Gate() as gate:
        hanging.before = gate.holds()
        async with CoreFixture(tmp_path, hanging, failing, stuck) as core:
            first = (await core.turn(CLI, "one")).ref.session_id
            await core.note("a note", await core.at(CLI))
            second = (await core.cross(CLI, New())).ref
            await core.turn(CLI, "two")
            await until(gate.reached.is_set)
            await until(lambda: failing.book.begun and stuck.book.begun)
            began = time.monotonic()
            await core.lifecycle.suspend()
            await core.stop()
            assert time.monotonic() - began < 2
    assert second is not None
    # Effects of the hanging thread after its release do not matter: a redelivery has no second effect.
    again = [ThreadDiary("hanging"), AsyncDiary("failing"), AsyncDiary("stuck")]
    async with CoreFixture(tmp_path, *again) as core:
        await core.settled()
        assert (await core.at(CLI)).session_id == second.session_id
    for diary in again:
        assert diary.book.told(first) == ["switch", "one", "a note", "end"]
        assert diary.book.told(second.session_id) == ["switch", "two"]


async def test_s28_after_a_crash_the_next_process_delivers_the_queued_entries(tmp_path: Path) -> None:
    slow = ThreadDiary("diary")
    with Gate() as gate:
        slow.before = gate.holds(lambda call: call.text == "two")
        async with CoreFixture(tmp_path, slow) as core:
            ref = (await core.turn(CLI, "one")).ref
            await core.turn(CLI, "two")
            await core.turn(CLI, "three")
            await until(gate.reached.is_set)
            await core.cross(CLI, New())
            # No suspend and no drain: the process is killed.
    diary = AsyncDiary("diary")
    async with CoreFixture(tmp_path, diary) as core:
        await core.settled()
    assert slow.book.told(ref.session_id)[:2] == ["switch", "one"]
    assert diary.book.told(ref.session_id) == ["two", "three", "end"]
    assert [turn.user_text for turn in diary.book.of("on_session_end")[0].view.turns] == ["one", "two", "three"]


async def test_s28_an_exit_that_closes_memory_delivers_the_close_after_a_restart(
    tmp_path: Path,
) -> None:
    failing = AsyncDiary("diary")
    failing.before = down
    async with CoreFixture(tmp_path, failing) as core:
        ref = (await core.turn(CLI, "one")).ref
        await core.lifecycle.suspend(close_memory=True)
    diary = AsyncDiary("diary")
    async with CoreFixture(tmp_path, diary) as core:
        await core.settled()
        assert (await core.session(ref.session_id)).ended_at is None
    assert diary.book.told(ref.session_id) == ["switch", "one", "end"]


async def test_s28_many_hanging_providers_do_not_add_up_their_timeouts(tmp_path: Path) -> None:
    gate = Gate()
    diaries = [ThreadDiary(f"p{number}") for number in range(8)]
    with gate:
        for diary in diaries:
            diary.before = gate.holds()
        async with CoreFixture(tmp_path, *diaries, limits=Limits(attempt_s_max=60)) as core:
            await core.turn(CLI, "one")
            await until(lambda: all(diary.book.begun for diary in diaries))
            began = time.monotonic()
            await core.stop()
            assert time.monotonic() - began < 2
        assert all(thread.daemon for thread in threading.enumerate() if ":on_session_switch" in thread.name)
