from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture

from everthread.domain.errors import BadInput, NotFound
from everthread.domain.model import Inbound, InboxState
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy


async def test_tool_calls_are_stored_by_id(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, "me", "look"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(BadInput, match="call_0"):
            await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(NotFound, match="call_9"):
            await core.lifecycle.finish_tool(ticket, "call_9", "seen")


async def test_a_message_of_another_person_does_not_steer(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, "me", "which way?"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        theirs, _ = await core.lifecycle.accept(Inbound(CLI, "bob", "rather left"))
        assert await core.lifecycle.steer(ticket, theirs.id) is None
        mine, _ = await core.lifecycle.accept(Inbound(CLI, "me", "rather right"))
        assert await core.lifecycle.steer(ticket, mine.id) is not None
        await core.lifecycle.commit_turn(ticket, (), None)
        after = await core.store.read(lambda uow: (uow.inbox.get(theirs.id), uow.inbox.get(mine.id)))
        assert [row.state if row else None for row in after] == [InboxState.WAITING, InboxState.DONE]


async def test_a_message_accepted_under_a_clock_that_was_ahead_stays_in_its_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=3600.0))) as core:
        await core.stop_lanes()
        session_id = (await core.turn(CLI, "hello")).ref.session_id
        core.clock.ahead_s = 86_400.0
        await core.lifecycle.accept(Inbound(CLI, ME, "more"))
        core.clock.ahead_s = 0.0
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        assert claim.ref.session_id == session_id
        assert (await core.session(session_id)).active_at <= core.clock.now()


async def test_a_turn_that_began_under_a_clock_that_was_ahead_leaves_no_activity_there(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        core.clock.ahead_s = 86_400.0
        await core.lifecycle.accept(Inbound(CLI, ME, "hello"))
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        core.clock.ahead_s = 0.0
        await core.lifecycle.commit_turn(claim, (), None)
        assert (await core.session(claim.ref.session_id)).active_at <= core.clock.now()
