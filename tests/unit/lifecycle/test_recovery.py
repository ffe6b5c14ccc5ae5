"""A turn that was begun and can't be gone on with is given back, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, CoreFixture, opened

from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import New, Resume, Rewind
from everthread.domain.errors import Busy, Fenced
from everthread.domain.model import (
    Inbound,
    Message,
    ReplyState,
    Role,
    SessionKey,
    SessionKind,
    ToolState,
    TurnStatus,
)
from everthread.lifecycle import ForgetSession, TurnClaim


async def begun(core: CoreFixture, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(CLI, ME, text))
    ticket = await core.lifecycle.begin_turn(CLI)
    assert ticket is not None
    return ticket


async def test_a_released_turn_can_be_claimed_at_once_with_its_tools_and_draft(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as other:
        ticket = await begun(core, "look it up")
        await core.lifecycle.start_tool(ticket, "c1", "look", "{}")
        await core.lifecycle.finish_tool(ticket, "c1", "seen")
        await core.lifecycle.start_tool(ticket, "c2", "send", "{}")
        await core.lifecycle.draft_reply(ticket, "I have", "platform-1")
        assert await other.lifecycle.recover() == ()
        await core.lifecycle.abandon_turn(ticket)
        assert await other.lifecycle.recover() == (ticket.turn_id,)
        again = await other.lifecycle.resume_turn(ticket.turn_id)
        assert again is not None
        assert (again.turn_id, again.ref, again.message.inbound) == (ticket.turn_id, ticket.ref, ticket.message.inbound)
        assert again.fence > ticket.fence
        assert [(tool.call_id, tool.state) for tool in again.tools] == [
            ("c1", ToolState.DONE),
            ("c2", ToolState.STARTED),
        ]
        reply = await other.store.read(lambda uow: uow.outbox.reply(ticket.turn_id))
        assert reply is not None
        assert (reply.state, reply.text, reply.platform_message_id) == (ReplyState.DRAFT, "I have", "platform-1")
        assert await core.lifecycle.recover() == ()
        assert await core.lifecycle.resume_turn(ticket.turn_id) is None
        done = await other.lifecycle.commit_turn(again, [Message(Role.USER, "look it up")], "done")
        assert (done.status, done.number) == (TurnStatus.DONE, 1)


async def test_the_process_that_released_a_turn_may_claim_it_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        fences: list[int] = []
        ticket: TurnClaim | None = await begun(core, "hello")
        for _ in range(3):
            assert ticket is not None
            fences.append(ticket.fence)
            await core.lifecycle.abandon_turn(ticket)
            (turn_id,) = await core.lifecycle.recover()
            ticket = await core.lifecycle.resume_turn(turn_id)
        assert fences == sorted(set(fences))
        assert ticket is not None
        done = await core.lifecycle.commit_turn(ticket, [Message(Role.USER, "hello")], None, interrupted=True)
        assert done.status is TurnStatus.INTERRUPTED
        assert await core.shown(done.ref.session_id) == ["hello"]


async def test_a_process_can_not_write_to_a_turn_it_released(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ticket = await begun(core, "hello")
        await core.lifecycle.abandon_turn(ticket)
        for late in (
            core.lifecycle.commit_turn(ticket, [], "too late"),
            core.lifecycle.start_tool(ticket, "c1", "look", "{}"),
            core.lifecycle.draft_reply(ticket, "too late"),
            core.lifecycle.abandon_turn(ticket),
        ):
            with pytest.raises(Fenced):
                await late
        assert await core.lifecycle.recover() == (ticket.turn_id,)


async def test_a_process_can_not_release_a_turn_that_another_has_claimed(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as other:
        ticket = await begun(core, "hello")
        await core.lifecycle.abandon_turn(ticket)
        assert await other.lifecycle.resume_turn(ticket.turn_id) is not None
        with pytest.raises(Fenced):
            await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == ()


async def test_messages_behind_a_released_turn_wait_for_it(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = await begun(core, "first")
        await core.lifecycle.abandon_turn(first)
        await core.lifecycle.accept(Inbound(CLI, ME, "second"))
        with pytest.raises(Busy):
            await core.lifecycle.begin_turn(CLI)
        again = await core.lifecycle.resume_turn(first.turn_id)
        assert again is not None
        await core.lifecycle.commit_turn(again, [Message(Role.USER, "first")], None)
        second = await core.lifecycle.begin_turn(CLI)
        assert second is not None
        assert second.message.inbound.text == "second"


@pytest.mark.parametrize(("boundary", "status"), [(New(), TurnStatus.LATE), (Rewind(1), TurnStatus.HIDDEN)])
async def test_a_cancelled_turn_that_is_released_is_stored_and_not_run_again(
    tmp_path: Path, boundary: New | Rewind, status: TurnStatus
) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "before")
        ticket = await begun(core, "cut short")
        await core.cross(CLI, boundary)
        await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == ()
        turn = await core.store.read(lambda uow: uow.turns.get(ticket.ref.session_id, 2))
        assert turn is not None
        assert (turn.user_text, turn.status) == ("cut short", status)
        await core.settled()
        told = diary.book.told(ticket.ref.session_id)
        assert told[-2:] == ["cut short", "end"] if status is TurnStatus.LATE else "cut short" not in told


async def test_a_turn_of_a_forgotten_session_can_not_be_released(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ticket = await begun(core, "secret")
        await core.lifecycle.forget(ForgetSession(ticket.ref.session_id), owner=ME)
        with pytest.raises(Fenced):
            await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == ()


async def test_a_released_turn_survives_its_process(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ticket = await begun(core, "hello")
        await core.lifecycle.abandon_turn(ticket)
        assert not await core.store.read_inline(lambda uow: uow.slots.held_by(core.holder))
    async with CoreFixture(tmp_path) as later:
        assert await later.lifecycle.recover() == (ticket.turn_id,)


CHILD = SessionKey.parse("agent:main:subagent:dm:1")


async def began(core: CoreFixture, key: SessionKey, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(key, ME, text))
    ticket = await core.lifecycle.begin_turn(key)
    assert ticket is not None
    return ticket


async def delegated(core: CoreFixture, parent: str) -> str:
    return opened(await core.cross(CHILD, New(kind=SessionKind.SUBAGENT, parent=parent)))


async def test_a_stopping_process_keeps_its_running_turn_until_it_ends(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as stopping, Runtime(Settings(tmp_path)) as other:
        await stopping.start()
        await stopping.lifecycle.accept(Inbound(CLI, "me", "hello"))
        ticket = await stopping.lifecycle.begin_turn(CLI)
        assert ticket is not None
        stop = asyncio.ensure_future(stopping.stop(5.0))
        await asyncio.sleep(0.2)
        assert await other.lifecycle.recover() == ()
        await stopping.lifecycle.commit_turn(ticket, [], "done")
        await asyncio.wait_for(stop, 5.0)
        assert not await other.store.read(lambda uow: uow.slots.orphans(other.clock.now()))


async def test_a_turn_that_outlasts_the_stop_can_be_recovered_by_any_process(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as stopping, Runtime(Settings(tmp_path)) as other:
        await stopping.start()
        await stopping.lifecycle.accept(Inbound(CLI, "me", "hello"))
        ticket = await stopping.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await stopping.stop(0.1)
        assert await other.lifecycle.recover() == (ticket.turn_id,)


async def test_delegated_work_is_recovered_only_by_the_turn_that_waits_for_it(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        waits = await began(core, CLI, "have it looked up")
        child = await delegated(core, waits.ref.session_id)
        work = await began(core, CHILD, "look it up")
        await core.lifecycle.abandon_turn(work)
        await core.lifecycle.abandon_turn(waits)
        assert await core.lifecycle.recover() == (waits.turn_id,)
        again = await core.lifecycle.resume_turn(waits.turn_id)
        assert again is not None
        assert await core.lifecycle.recover() == ()
        assert await core.lifecycle.resume_turn(work.turn_id) is not None
        assert (await core.session(child)).last_turn == 0


async def test_delegated_work_that_no_turn_waits_for_is_stored_as_interrupted(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        waits = await began(core, CLI, "have it looked up")
        child = await delegated(core, waits.ref.session_id)
        work = await began(core, CHILD, "look it up")
        await core.lifecycle.abandon_turn(work)
        await core.lifecycle.commit_turn(waits, (), None, interrupted=True)
        assert await core.lifecycle.recover() == ()
        turn = await core.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is not None
        assert (turn.status, turn.user_text) == (TurnStatus.INTERRUPTED, "look it up")


async def test_a_users_turn_in_a_delegated_session_is_recovered_after_a_crash(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "go")).ref.session_id
        child = await delegated(core, parent)
        await core.turn(CHILD, "look it up")
        await core.cross(CLI, Resume(child))
        ticket = await began(core, CLI, "what did you find?")
        await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == (ticket.turn_id,)


@pytest.mark.parametrize("answered", [False, True])
async def test_work_that_a_user_resumed_before_its_task_was_stored_is_set_aside(tmp_path: Path, answered: bool) -> None:
    """The delegating process is slow to store the task, and dies after it has stored it."""
    async with CoreFixture(tmp_path) as core:
        waits = await began(core, TELEGRAM, "have it looked up")
        child = await delegated(core, waits.ref.session_id)
        # The running turn becomes late, so that no process will wait for the work.
        for key in (CLI, TELEGRAM):
            await core.cross(key, Resume(child))
        await core.lifecycle.accept(Inbound(CHILD, "me", "look it up"))
        await core.lifecycle.abandon_turn(waits)
        if answered:
            await core.turn(TELEGRAM, "what did you find?")
            await core.cross(TELEGRAM, await core.compression(TELEGRAM))
        assert await core.lifecycle.recover() == ()
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        aside = await core.store.read(lambda uow: uow.turns.get(child, 1))
        assert aside is not None
        assert (aside.status, aside.user_text) == (TurnStatus.SET_ASIDE, "look it up")


@pytest.mark.parametrize("started", [False, True])
async def test_work_whose_session_was_compressed_is_given_up_with_the_turn_that_waits(
    tmp_path: Path, started: bool
) -> None:
    async with CoreFixture(tmp_path) as core:
        waits = await began(core, CLI, "have it looked up")
        await delegated(core, waits.ref.session_id)
        await core.turn(CHILD, "look it up")
        tip = opened(await core.cross(CHILD, await core.compression(CHILD)))
        await core.lifecycle.accept(Inbound(CHILD, "me", "look again"))
        if started:
            work = await core.lifecycle.begin_turn(CHILD)
            assert work is not None
            await core.lifecycle.abandon_turn(work)
        assert await core.lifecycle.recover() == ()
        assert (await core.session(tip)).last_turn == 1, "given up although a turn waits for it"
        await core.lifecycle.commit_turn(waits, (), None, interrupted=True)
        assert await core.lifecycle.recover() == ()
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        turn = await core.store.read(lambda uow: uow.turns.get(tip, 2))
        assert turn is not None
        status = TurnStatus.INTERRUPTED if started else TurnStatus.SET_ASIDE
        assert (turn.status, turn.user_text) == (status, "look again")
