from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, opened

from everthread.domain.boundary import Branch, Compress, Forget, New, Reset, Resume, Rewind, Suspend
from everthread.domain.errors import NotFound
from everthread.domain.model import Inbound, SessionKind
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy


@pytest.mark.parametrize("boundary", [Branch(), Rewind(1), Compress("", 0, "s", 0)])
async def test_another_owner_can_not_change_the_session_of_a_key(tmp_path: Path, boundary: Branch) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.turn(CLI, "mine")
        here = await core.at(CLI)
        with pytest.raises(NotFound):
            await core.cross(CLI, boundary, owner="stranger")
        assert await core.at(CLI) == here


@pytest.mark.parametrize("boundary", [New(), Reset()])
async def test_another_owner_of_a_key_starts_an_empty_session(tmp_path: Path, boundary: New) -> None:
    async with CoreFixture(tmp_path) as core:
        mine = (await core.turn(CLI, "mine")).ref
        theirs = (await core.cross(CLI, boundary, owner="stranger")).ref
        assert theirs is not None
        assert theirs.owner == "stranger"
        assert await core.shown(theirs.session_id) == []
        with pytest.raises(NotFound):
            await core.cross(CLI, Resume(mine.session_id), owner="stranger")


async def test_suspend_skips_a_key_that_another_owner_took_over(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as elsewhere:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        # What was served here was left while another process took over the turn that still ran.
        await core.store.write(lambda uow: uow.sessions.serve(core.holder, mine, TELEGRAM))
        await elsewhere.turn(TELEGRAM, "theirs", owner="stranger")
        crossings = await core.lifecycle.suspend(close_memory=True)
        assert [crossing.left for crossing in crossings] == [mine]


async def test_turns_after_resuming_a_scheduled_session_are_remembered_again(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.cross(TELEGRAM, New(kind=SessionKind.CRON))
        scheduled = (await core.turn(TELEGRAM, "water the plants")).ref.session_id
        await core.turn(CLI, "hello")
        await core.cross(CLI, Resume(scheduled))
        assert (await core.session(opened(await core.cross(CLI, New())))).kind is SessionKind.CHAT
        assert (await core.session(opened(await core.cross(TELEGRAM, New())))).kind is SessionKind.CRON


async def test_forgetting_sets_waiting_messages_aside_in_their_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        await core.lifecycle.accept(Inbound(CLI, ME, "and this?"))
        gateway = await core.cross(CLI, Suspend())
        assert (gateway.set_aside, len(await core.store.read(lambda uow: uow.inbox.waiting(CLI)))) == ((), 1)
        crossing = await core.cross(CLI, Suspend(close_memory=True))
        assert [row.inbound.text for row in crossing.set_aside] == ["and this?"]
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        aside = await core.store.read(lambda uow: uow.turns.get(mine, 2))
        assert aside is not None
        assert (aside.user_text, aside.status.value) == ("and this?", "set_aside")


async def test_a_waiting_message_of_another_owner_is_not_set_aside_in_this_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        await core.lifecycle.accept(Inbound(CLI, "bob", "bob's secret"))
        theirs = await core.cross(CLI, New(), owner="bob")
        assert [row.inbound.text for row in theirs.set_aside] == ["bob's secret"]
        assert await core.search("me", "secret", limit=5) == ()
        hits = await core.search("bob", "secret", limit=5)
        assert [hit.session_id for hit in hits] == [opened(theirs)]
        assert opened(theirs) != mine


async def test_cross_refuses_forget(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = (await core.turn(CLI, "hello")).ref.session_id
        with pytest.raises(TypeError, match="forget"):
            await core.cross(CLI, Forget(session))


async def test_the_kind_of_a_key_outlives_its_sessions(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=10.0))
    async with CoreFixture(tmp_path, policies=policies) as core:
        await core.cross(CLI, New(kind=SessionKind.CRON))
        await core.turn(CLI, "first")
        core.clock.ahead_s += 3600.0
        after_expiry = (await core.turn(CLI, "second")).ref.session_id
        after_reset = opened(await core.cross(CLI, Reset()))
        for session_id in (after_expiry, after_reset):
            assert (await core.session(session_id)).kind is SessionKind.CRON
