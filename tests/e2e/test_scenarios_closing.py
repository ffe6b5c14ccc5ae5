"""Scenarios of closing a session's memory: once, after all earlier entries, and only if it has content."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.runtime import (
    CLI,
    ME,
    QUICK,
    TELEGRAM,
    AsyncDiary,
    Call,
    CoreFixture,
    Diary,
    Gate,
    ThreadDiary,
    opened,
    until,
)

from everthread.domain.boundary import Boundary, Branch, New, Reset, Resume
from everthread.domain.errors import Unavailable
from everthread.domain.model import (
    Inbound,
    SessionKind,
)
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy

HOUR_S = 3600.0
IDLE = ResetPolicies(ResetPolicy(idle_s=HOUR_S))


# --- S08: end of a session, then the switch ---


@pytest.mark.parametrize("name", ["new", "compress", "branch", "expire"])
async def test_s08_an_end_followed_by_a_switch_is_one_close(tmp_path: Path, name: str) -> None:
    diary, thread = AsyncDiary(), ThreadDiary()
    async with CoreFixture(tmp_path, diary, thread, policies=IDLE) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.lifecycle.suspend(close_memory=True)
        boundaries: dict[str, Boundary] = {"new": New(), "branch": Branch()}
        if name == "expire":
            await core.later(2 * HOUR_S)
            await core.turn(CLI, "two")
        else:
            await core.cross(CLI, boundaries.get(name) or await core.compression(CLI))
        await core.settled()
    for book in (diary.book, thread.book):
        assert book.told(old) == ["switch", "one", "end"]


async def test_s08_a_session_continued_after_its_close_is_closed_again_with_all_turns(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        first = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        await core.cross(CLI, Resume(first))
        await core.cross(CLI, New())
        await core.cross(CLI, Resume(first))
        await core.turn(CLI, "two")
        await core.cross(CLI, New())
        await core.settled()
    ends = diary.book.of("on_session_end", first)
    assert [[turn.user_text for turn in call.view.turns] for call in ends] == [["one"], ["one", "two"]]


async def test_s08_a_close_contains_the_inherited_turns_marked_as_inherited(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "one")
        child = opened(await core.cross(CLI, Branch()))
        await core.turn(CLI, "two")
        await core.cross(CLI, New())
        await core.settled()
    [end] = diary.book.of("on_session_end", child)
    assert [(turn.user_text, turn.inherited) for turn in end.view.turns] == [("one", True), ("two", False)]


# --- S09: a write hangs past its timeout when the session ends ---


async def test_s09_the_close_is_delivered_after_a_hanging_write(tmp_path: Path) -> None:
    slow, quick = ThreadDiary("slow"), AsyncDiary("quick")
    with Gate() as gate:
        slow.before = gate.holds(lambda call: call.text == "one")
        async with CoreFixture(tmp_path, slow, quick) as core:
            old = (await core.turn(CLI, "one")).ref.session_id
            await until(gate.reached.is_set)
            async with asyncio.timeout(2):
                await core.cross(CLI, New())
                await core.turn(CLI, "rotation is not held up")
            await until(lambda: quick.book.told(old) == ["switch", "one", "end"])
            # Wait for several times the timeout of an attempt.
            waited = time.monotonic() + 0.5
            await until(lambda: time.monotonic() > waited)
            assert slow.book.told(old) == ["switch"]
            cursor = await core.store.read(lambda uow: uow.cursors.get("slow", old))
            session = await core.session(old)
            assert cursor is not None
            assert cursor.seq < session.closed_seq, "the session is marked as delivered to this provider"
            # Only one attempt hangs; no further attempts were started.
            assert [call.text for call in slow.book.begun].count("one") == 1
            gate.open()
            await core.settled()
    assert slow.book.told(old) == ["switch", "one", "end"]
    assert [call.text for call in slow.book.calls].count("one") == 1


async def test_s09_an_async_write_that_hangs_is_retried_and_the_close_comes_last(tmp_path: Path) -> None:
    diary, well = AsyncDiary(), asyncio.Event()

    async def wait(call: Call) -> None:
        if call.text == "one":
            await well.wait()

    diary.before = wait
    async with CoreFixture(tmp_path, diary) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        await until(lambda: [call.text for call in diary.book.begun].count("one") > 2)
        assert diary.book.told(old) == ["switch"]
        well.set()
        await core.settled()
    assert diary.book.told(old) == ["switch", "one", "end"]
    attempts = [call.delivery.attempt for call in diary.book.begun if call.text == "one"]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len({call.delivery.key for call in diary.book.begun if call.text == "one"}) == 1


async def test_s09_a_write_that_hangs_and_then_fails_is_retried(tmp_path: Path) -> None:
    diary = ThreadDiary()
    with Gate() as gate:

        def hang_then_fail(call: Call) -> None:
            if call.text == "one" and call.delivery.attempt == 1:
                gate.wait()
                raise OSError("the connection broke")

        diary.before = hang_then_fail
        async with CoreFixture(tmp_path, diary) as core:
            old = (await core.turn(CLI, "one")).ref.session_id
            await core.cross(CLI, New())
            await until(gate.reached.is_set)
            gate.open()
            await core.settled()
    assert diary.book.told(old) == ["switch", "one", "end"]


# --- S10: several writers in flight, an older one slower than the newest ---


async def test_s10_the_close_waits_for_every_earlier_turn_and_note(tmp_path: Path) -> None:
    slow, uneven = ThreadDiary("slow"), ThreadDiary("uneven")
    tries: dict[str, int] = {}

    def fails_at_first(call: Call) -> None:
        tries[call.text] = tries.get(call.text, 0) + 1
        if call.text in ("turn 0", "note 1") and tries[call.text] < 3:
            raise Unavailable("uneven", "busy", retry_after_s=0.01)

    uneven.before = fails_at_first
    with Gate() as oldest, Gate() as middle:

        def hold(call: Call) -> None:
            if call.text == "turn 0":
                oldest.wait()
            elif call.text == "note 0":
                middle.wait()

        slow.before = hold
        async with CoreFixture(tmp_path, slow, uneven) as core:
            ref = (await core.turn(CLI, "turn 0")).ref
            await asyncio.gather(*(core.note(f"note {number}", ref) for number in range(2)))
            await core.turn(CLI, "turn 1")
            await core.cross(CLI, New())
            await until(oldest.reached.is_set)
            middle.open()
            assert slow.book.told(ref.session_id) == ["switch"]
            oldest.open()
            await core.settled()
    everything = ["switch", "turn 0", "note 0", "note 1", "turn 1", "end"]
    assert slow.book.told(ref.session_id) == everything
    assert uneven.book.told(ref.session_id) == everything
    assert tries["turn 0"] == tries["note 1"] == 3


async def test_s10_many_concurrent_sessions_and_writers_each_keep_their_order(tmp_path: Path) -> None:
    diaries: list[Diary] = [AsyncDiary("a"), ThreadDiary("b")]
    sessions: dict[str, list[str]] = {}
    async with CoreFixture(tmp_path, *diaries) as core:

        async def talk(key: Any, name: str) -> None:
            for part in range(3):
                ref = (await core.turn(key, f"{name}{part}")).ref
                await core.note(f"{name}{part} note", ref)
                sessions[ref.session_id] = ["switch", f"{name}{part}", f"{name}{part} note", "end"]
                await core.cross(key, New())

        await asyncio.gather(talk(CLI, "c"), talk(TELEGRAM, "t"))
        await core.settled()
    for diary in diaries:
        assert {session: diary.book.told(session) for session in sessions} == sessions


# --- S12: closing the old session fails ---


async def test_s12_a_close_that_fails_is_retried_and_takes_effect_once(tmp_path: Path, caplog: Any) -> None:
    diary, good = AsyncDiary(), AsyncDiary("good")
    failures = 3

    async def fail(call: Call) -> None:
        nonlocal failures
        if call.hook == "on_session_end" and failures:
            failures -= 1
            raise OSError("commit failed")

    diary.before = fail
    async with CoreFixture(tmp_path, diary, good) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        async with asyncio.timeout(2):
            crossing = await core.cross(CLI, New())
            await core.turn(CLI, "two")
        assert crossing.ref is not None
        await core.settled()
        assert "commit failed" in " ".join(await core.incidents())
    assert failures == 0
    assert diary.book.told(old) == ["switch", "one", "end"]
    assert [call.hook for call in diary.book.calls].count("on_session_end") == 1
    assert diary.book.told(crossing.ref.session_id) == ["switch", "two"]
    assert "commit failed" in caplog.text


async def test_s12_a_close_that_failed_after_its_effect_is_redelivered_under_the_same_key(
    tmp_path: Path,
) -> None:
    class Forgetful(AsyncDiary):
        async def on_session_end(self, messages: Any, *, ref: Any, delivery: Any, **more: Any) -> None:
            await super().on_session_end(messages, ref=ref, delivery=delivery, **more)
            if delivery.attempt == 1:
                raise ConnectionResetError("the answer was lost")

    diary = Forgetful()
    async with CoreFixture(tmp_path, diary) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        await core.settled()
    ends = [call for call in diary.book.calls if call.hook == "on_session_end"]
    assert [call.delivery.attempt for call in ends] == [1, 2]
    assert len({call.delivery.key for call in ends}) == 1
    assert diary.book.told(old) == ["switch", "one", "end"]


# --- S13: the session is empty, or the provider was never initialised ---


async def test_s13_an_empty_session_is_not_closed(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        ids = [opened(await core.cross(CLI, boundary)) for boundary in (New(), Reset(), New(), Branch())]
        await core.lifecycle.suspend(close_memory=True)
        await core.settled()
    assert diary.book.of("on_session_end") == []
    assert {call.session for call in diary.book.of("on_session_switch")} == set(ids)


async def test_s13_a_session_with_only_messages_set_aside_is_not_closed(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        old = opened(await core.cross(CLI, New()))
        await core.lifecycle.accept(Inbound(CLI, ME, "waits"))
        crossing = await core.cross(CLI, New())
        assert [row.inbound.text for row in crossing.set_aside] == ["waits"]
        await core.settled()
    assert diary.book.told(old) == ["switch"]


async def test_s13_a_provider_receives_everything_once_it_can_be_initialised(
    tmp_path: Path,
) -> None:
    class Late(AsyncDiary):
        up = False
        tries = 0

        def initialize(self, **settings: Any) -> None:
            self.tries += 1
            if not self.up:
                raise ValueError("not up yet")

    late, diary = Late("late"), AsyncDiary()
    async with CoreFixture(tmp_path, late, diary, limits=replace(QUICK, attempts_max=2)) as core:
        old = (await core.turn(CLI, "one")).ref.session_id
        await core.cross(CLI, New())
        await until(lambda: diary.book.told(old) == ["switch", "one", "end"])
        await until(lambda: late.tries > 3)
        await core.reported("memory:late", "not up yet")
        assert late.book.begun == []
        late.up = True
        await core.settled()
    assert late.book.told(old) == ["switch", "one", "end"]


async def test_s13_only_chat_sessions_are_delivered_to_providers(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.cross(CLI, New(kind=SessionKind.CRON))
        await core.turn(CLI, "scheduled")
        await core.cross(CLI, Reset())
        await core.turn(CLI, "scheduled again")
        await core.cross(CLI, New(kind=SessionKind.CHAT))
        await core.turn(CLI, "said")
        await core.settled()
    assert diary.book.of("on_session_end") == []
    assert diary.book.words().split() == ["said"]
