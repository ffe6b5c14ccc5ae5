"""A turn that was begun and can't be gone on with is given back, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, AsyncDiary, CoreFixture

from everthread.domain.boundary import New, Rewind
from everthread.domain.errors import Busy, Fenced
from everthread.domain.model import Inbound, Message, ReplyState, Role, ToolState, TurnStatus
from everthread.lifecycle import ForgetSession, TurnClaim


async def begun(core: CoreFixture, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(CLI, ME, text))
    ticket = await core.lifecycle.begin_turn(CLI)
    assert ticket is not None
    return ticket


async def test_an_abandoned_turn_is_anybodys_at_once_with_its_tools_and_its_draft(tmp_path: Path) -> None:
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


async def test_the_process_that_gave_it_back_may_take_it_again(tmp_path: Path) -> None:
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


async def test_whoever_gave_a_turn_back_can_write_no_more_of_it(tmp_path: Path) -> None:
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


async def test_nobody_can_give_back_what_another_has_taken_over(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as other:
        ticket = await begun(core, "hello")
        await core.lifecycle.abandon_turn(ticket)
        assert await other.lifecycle.resume_turn(ticket.turn_id) is not None
        with pytest.raises(Fenced):
            await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == ()


async def test_messages_behind_an_abandoned_turn_wait_for_it(tmp_path: Path) -> None:
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
async def test_a_cancelled_turn_that_is_given_back_is_stored_and_not_run_again(
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


async def test_a_turn_of_a_forgotten_session_cannot_be_given_back(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ticket = await begun(core, "secret")
        await core.lifecycle.forget(ForgetSession(ticket.ref.session_id), owner=ME)
        with pytest.raises(Fenced):
            await core.lifecycle.abandon_turn(ticket)
        assert await core.lifecycle.recover() == ()


async def test_a_turn_given_back_outlives_its_process(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        ticket = await begun(core, "hello")
        await core.lifecycle.abandon_turn(ticket)
        assert not await core.store.read_inline(lambda uow: uow.slots.held_by(core.holder))
    async with CoreFixture(tmp_path) as later:
        assert await later.lifecycle.recover() == (ticket.turn_id,)
