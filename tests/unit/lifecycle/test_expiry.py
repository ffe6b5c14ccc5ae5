from pathlib import Path

from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, opened

from everthread.domain.boundary import Expire, New, Refusal, Resume
from everthread.domain.model import Inbound, SessionKey, SessionKind
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import TurnClaim

CHILD = SessionKey.parse("agent:main:subagent:dm:1")


LATER_S = 1_000.0


async def began(core: CoreFixture, key: SessionKey, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(key, ME, text))
    ticket = await core.lifecycle.begin_turn(key)
    assert ticket is not None
    return ticket


async def delegated(core: CoreFixture, parent: str) -> str:
    return opened(await core.cross(CHILD, New(kind=SessionKind.SUBAGENT, parent=parent)))


async def test_a_message_of_another_owner_at_an_expired_session_opens_a_new_one(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=60.0))
    async with CoreFixture(tmp_path, policies=policies) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        # Nobody serves timers here: the message itself must find out that the session is over.
        core.clock.ahead_s += 3600.0
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
