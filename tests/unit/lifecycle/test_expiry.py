import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.runtime import CLI, ME, PATIENCE_S, TELEGRAM, CoreFixture, opened

from everthread.domain.boundary import Expire, New, Refusal, Resume
from everthread.domain.model import Inbound, SessionKey, SessionKind
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import TurnClaim
from everthread.lifecycle.expiry import RECHECK_S

CHILD = SessionKey.parse("agent:main:subagent:dm:1")


LATER_S = 1_000.0
POLL_S = 0.005

T = TypeVar("T")


async def began(core: CoreFixture, key: SessionKey, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(key, ME, text))
    ticket = await core.lifecycle.begin_turn(key)
    assert ticket is not None
    return ticket


async def delegated(core: CoreFixture, parent: str) -> str:
    return opened(await core.cross(CHILD, New(kind=SessionKind.SUBAGENT, parent=parent)))


async def changed(read: Callable[[], Awaitable[T]], before: T) -> T:
    """Poll until the value differs, and return it."""
    for _ in range(int(PATIENCE_S / POLL_S)):
        if (now := await read()) != before:
            return now
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"still {before}")


async def test_a_message_of_another_owner_at_an_expired_session_opens_a_new_one(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=60.0))
    async with CoreFixture(tmp_path, policies=policies) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        # Nobody serves timers here: the message itself must find out that the session is over.
        core.clock.advance(3600.0)
        theirs = (await core.turn(CLI, "theirs", owner="stranger")).ref
        assert (theirs.owner, theirs.session_id != mine) == ("stranger", True)
        assert (await core.session(mine)).end_reason == "idle"


async def test_a_resumed_session_without_new_turns_expires(tmp_path: Path) -> None:
    """Nothing is said after it: the boundary alone must set the timer."""
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=10.0))) as core:
        old = (await core.turn(TELEGRAM, "first")).ref.session_id
        assert (await core.cross(CLI, Resume(old))).ref is not None
        due = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + 3600.0, 10))
        assert {timer.key for timer in due} == {TELEGRAM, CLI}


async def test_expiry_waits_only_for_delegated_work(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "go")).ref.session_id
        await delegated(core, parent)
        ticket = await began(core, CHILD, "look it up")
        expire = Expire(ResetPolicy(idle_s=60), core.clock.now() + LATER_S)
        assert (await core.cross(CLI, expire)).refusal is Refusal.TURN_RUNNING
        await core.lifecycle.commit_turn(ticket, (), None)
        assert (await core.cross(CLI, expire)).refusal is None


async def test_a_refused_expiry_is_tried_again(tmp_path: Path) -> None:
    """Nothing happens at the key after the refusal: only the timer can bring the expiry about."""

    async def due_at() -> float | None:
        timers = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + LATER_S, 10))
        return next((timer.due_at for timer in timers if timer.key == CLI), None)

    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        parent = (await core.turn(CLI, "go")).ref.session_id
        await delegated(core, parent)
        work = await began(core, CHILD, "look it up")
        first = await due_at()
        assert first is not None
        await core.later(61.0)
        again = await changed(due_at, first)
        assert again is not None, "the timer was not set again"
        assert first + RECHECK_S <= again <= core.clock.now() + RECHECK_S
        assert (await core.at(CLI)).session_id == parent
        await core.lifecycle.commit_turn(work, (), None)
        await core.later(RECHECK_S)
        assert await changed(lambda: core.lifecycle.current(CLI), await core.at(CLI)) is None
        assert (await core.session(parent)).end_reason == "idle"


YEAR_S = 366 * 86_400.0


async def test_a_message_under_a_clock_that_is_ahead_does_not_stop_expiry(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        core.clock.ahead_s = YEAR_S
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        core.clock.ahead_s = 0.0
        await core.later(1.0)
        await core.lowered(session_id)
        await core.later(61.0)
        await core.ended(session_id, "idle")


async def test_a_session_opened_after_the_clock_returned_expires_in_time(tmp_path: Path) -> None:
    """The timer was set under a clock that was ahead, and no lane was served before the boundary."""
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        await core.stop_lanes()
        core.clock.ahead_s = YEAR_S
        await core.turn(CLI, "hello")
        core.clock.ahead_s = 0.0
        await core.cross(CLI, New())
        timers = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + 61.0, 9))
        assert [timer.key for timer in timers] == [CLI]


async def test_an_answer_after_the_clock_returned_sets_an_earlier_timer(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        await core.stop_lanes()
        core.clock.ahead_s = YEAR_S
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        core.clock.ahead_s = 0.0
        assert (await core.turn(CLI, "hello again")).ref.session_id == session_id
        assert (await core.session(session_id)).active_at <= core.clock.now()
        timers = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + 61.0, 9))
        assert [timer.key for timer in timers] == [CLI]


async def test_the_timers_of_all_keys_are_set_earlier_after_the_clock_returned(tmp_path: Path) -> None:
    """The activity is replaced at one key. Nothing would find the timer of the other key, which is due in a year."""
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        core.clock.ahead_s = YEAR_S
        session_id = (await core.turn(TELEGRAM, "first")).ref.session_id
        core.clock.ahead_s = 0.0
        await core.cross(CLI, Resume(session_id))
        timers = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + 61.0, 9))
        assert {timer.key for timer in timers} == {TELEGRAM, CLI}


async def test_a_due_timer_lowers_an_activity_that_is_ahead(tmp_path: Path) -> None:
    """Another process may have written under a clock that this one never had."""
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=60.0))) as core:
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        ahead = (await core.session(session_id)).replace(active_at=core.clock.now() + YEAR_S)
        await core.store.write(lambda uow: uow.sessions.save(ahead))
        await core.later(61.0)
        await core.lowered(session_id)
        await core.later(61.0)
        await core.ended(session_id, "idle")
