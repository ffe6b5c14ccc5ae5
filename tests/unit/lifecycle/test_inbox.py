"""Commands in the inbox, in their place among the messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, opened

from everthread.domain.boundary import New, Rewind
from everthread.domain.errors import AlreadyDone
from everthread.domain.model import (
    Inbound,
    InboxState,
    ReplyState,
)


async def test_a_message_waits_for_an_earlier_command(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = (await core.turn(TELEGRAM, "one")).ref.session_id
        order, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/new", command=True))
        await core.lifecycle.accept(Inbound(TELEGRAM, ME, "two"))
        assert await core.lifecycle.begin_turn(TELEGRAM) is None
        crossed = await core.lifecycle.cross(TELEGRAM, New(), owner=ME, command_id=order.id)
        assert crossed.set_aside == ()
        await core.lifecycle.answer_command(order, "done")
        ticket = await core.lifecycle.begin_turn(TELEGRAM)
        assert ticket is not None
        assert ticket.ref.session_id == opened(crossed) != first


async def test_a_message_behind_a_command_does_not_steer(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(TELEGRAM, ME, "one"))
        ticket = await core.lifecycle.begin_turn(TELEGRAM)
        assert ticket is not None
        await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/new", command=True))
        row, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "two"))
        assert await core.lifecycle.steer(ticket, row.id) is None


async def test_a_command_runs_once(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        for text in ("one", "two", "three"):
            await core.turn(TELEGRAM, text)
        order, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/undo", command=True))
        crossed = await core.lifecycle.cross(TELEGRAM, Rewind(1), owner=ME, command_id=order.id)
        with pytest.raises(AlreadyDone):
            await core.lifecycle.cross(TELEGRAM, Rewind(1), owner=ME, command_id=order.id)
        assert await core.shown(crossed.left or "") == ["one", "two"]


async def test_the_answer_of_a_command_is_stored_as_a_reply(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        order, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/help", command=True))
        reply = await core.lifecycle.answer_command(order, "this and that")
        assert reply is not None
        assert await core.store.read(lambda uow: uow.outbox.replies(ReplyState.READY, 9)) == (reply,)
        done = await core.store.read(lambda uow: uow.inbox.get(order.id))
        assert done is not None
        assert done.state is InboxState.DONE
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()


async def test_a_started_command_is_recovered(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.turn(TELEGRAM, "one")
        order, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/new", command=True))
        await core.lifecycle.cross(TELEGRAM, New(), owner=ME, command_id=order.id)
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == (TELEGRAM,)
        (begun,) = await core.store.read(lambda uow: uow.inbox.commands(TELEGRAM))
        assert (begun.id, begun.state) == (order.id, InboxState.RUNNING)


async def test_a_boundary_returns_the_cancelled_message_to_its_owner_only(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        for owner in (ME, "somebody else"):
            await core.lifecycle.accept(Inbound(TELEGRAM, ME, "a long story"))
            await core.lifecycle.begin_turn(TELEGRAM)
            crossing = await core.cross(TELEGRAM, New(), owner=owner)
            assert crossing.cancelled
            assert [row.inbound.text for row in crossing.unanswered] == (["a long story"] if owner == ME else [])


async def test_messages_with_empty_update_ids_are_not_duplicates(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        taken = [(await core.lifecycle.accept(Inbound(CLI, "me", text, update_id="")))[1] for text in ("a", "b")]
        assert taken == [True, True]
