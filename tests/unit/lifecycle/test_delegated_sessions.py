"""Sessions of delegated work in the store: opened, recovered, forgotten."""

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, CoreFixture, opened

from everthread.domain.boundary import New
from everthread.domain.errors import NotFound
from everthread.domain.events import EntryKind
from everthread.domain.model import Inbound, InboxState, SessionKey, SessionKind, TurnStatus
from everthread.lifecycle import ForgetOwner, ForgetSession, TurnClaim

CHILD = SessionKey.parse("agent:main:subagent:dm:1")


LATER_S = 1_000.0


async def began(core: CoreFixture, key: SessionKey, text: str) -> TurnClaim:
    await core.lifecycle.accept(Inbound(key, ME, text))
    ticket = await core.lifecycle.begin_turn(key)
    assert ticket is not None
    return ticket


async def delegated(core: CoreFixture, parent: str) -> str:
    return opened(await core.cross(CHILD, New(kind=SessionKind.SUBAGENT, parent=parent)))


async def test_a_delegated_session_inherits_nothing_and_its_parent_continues(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        first = await core.turn(CLI, "secret plans")
        parent = first.ref.session_id
        child = await delegated(core, parent)
        await core.turn(CHILD, "look it up")
        session = await core.session(child)
        assert session.parent_id == parent
        view = await core.store.read(lambda uow: uow.turns.view(session))
        assert [turn.user_text for turn in view.turns] == ["look it up"]
        here = await core.lifecycle.current(CLI)
        assert here is not None
        assert here.session_id == parent


async def test_delegating_moves_no_turns_of_the_parent_session(
    tmp_path: Path,
) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "secret plans")).ref.session_id
        child = opened(await core.cross(CLI, New(kind=SessionKind.SUBAGENT, parent=parent)))
        session = await core.session(child)
        assert (session.base_turn, session.base_seq) == (0, 0)
        assert (await core.store.read(lambda uow: uow.turns.view(session))).turns == ()


async def test_another_owners_session_can_not_be_a_parent(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "mine")).ref.session_id
        with pytest.raises(NotFound):
            await core.lifecycle.cross(CHILD, New(kind=SessionKind.SUBAGENT, parent=parent), owner="somebody else")


@pytest.mark.parametrize("what", ["the session", "the person"])
async def test_forgetting_a_session_forgets_its_delegated_sessions(tmp_path: Path, what: str) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "go")).ref.session_id
        child = await delegated(core, parent)
        await core.turn(CHILD, "look up the secret")
        forgotten = ForgetSession(parent) if what == "the session" else ForgetOwner()
        await core.lifecycle.forget(forgotten, owner=ME)
        assert (await core.session(child)).forgotten_seq is not None
        turn = await core.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is None or "secret" not in turn.user_text
        entries = await core.store.read(lambda uow: uow.log.of_kind(child, EntryKind.FORGET))
        assert len(entries) == 1


async def test_lists_of_conversations_leave_out_delegated_sessions(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "go")).ref.session_id
        child = await delegated(core, parent)
        listed = await core.store.read(lambda uow: uow.sessions.conversations(9))
        assert [session.id for session in listed] == [parent]
        everything = await core.store.read(lambda uow: uow.sessions.conversations(9, delegated=True))
        assert {session.id for session in everything} == {parent, child}


async def test_unstarted_delegated_work_is_set_aside_when_its_turn_ends(
    tmp_path: Path,
) -> None:
    async with CoreFixture(tmp_path) as dead:
        ticket = await began(dead, CLI, "look it up for me")
        child = await delegated(dead, ticket.ref.session_id)
        await dead.lifecycle.accept(Inbound(CHILD, ME, "look it up"))
        assert await dead.lifecycle.recover() == ()
        assert await dead.store.read(lambda uow: uow.inbox.keys_waiting()) == (CHILD,), "its turn still waits for it"
        await dead.cross(CLI, New())
    async with CoreFixture(tmp_path) as core:
        await core.later(LATER_S)
        assert await core.lifecycle.recover() == ()
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        turn = await core.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is not None
        assert (turn.user_text, turn.status) == ("look it up", TurnStatus.SET_ASIDE)


async def test_unstarted_delegated_work_is_forgotten_with_its_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        parent = (await core.turn(CLI, "secret plans")).ref.session_id
        child = await delegated(core, parent)
        row, _ = await core.lifecycle.accept(Inbound(CHILD, ME, "look it up"))
        await core.lifecycle.accept(Inbound(CLI, ME, "and another thing"))
        await core.lifecycle.forget(ForgetSession(child), owner=ME)
        assert await core.store.read(lambda uow: uow.inbox.first_waiting(CHILD)) is None
        stored = await core.store.read(lambda uow: uow.inbox.get(row.id))
        assert stored is not None
        assert (stored.state, stored.inbound.text) == (InboxState.SET_ASIDE, "[forgotten]")
        # What waits where people talk is answered in the next conversation.
        assert await core.store.read(lambda uow: uow.inbox.first_waiting(CLI)) is not None
