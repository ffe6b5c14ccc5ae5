"""Sessions of delegated work in the store: opened, recovered, forgotten."""

from pathlib import Path

import pytest
from tests.runtime import CLI, ME, AsyncDiary, House, opened

from everthread.domain.boundary import Expire, New, Refusal, Resume
from everthread.domain.errors import NotFound
from everthread.domain.events import EntryKind
from everthread.domain.model import Inbound, InboxState, Kind, SessionKey, TurnStatus
from everthread.domain.reset_policy import ResetPolicy
from everthread.lifecycle import ForgetOwner, ForgetSession, TurnClaim

CHILD = SessionKey.parse("agent:main:subagent:dm:1")
LATER_S = 1_000.0


async def began(house: House, key: SessionKey, text: str) -> TurnClaim:
    await house.lifecycle.accept(Inbound(key, ME, text))
    ticket = await house.lifecycle.begin_turn(key)
    assert ticket is not None
    return ticket


async def delegated(house: House, parent: str) -> str:
    return opened(await house.cross(CHILD, New(kind=Kind.SUBAGENT, parent=parent)))


async def test_the_child_shows_nothing_of_its_parent_and_its_parent_goes_on(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        first = await house.turn(CLI, "secret plans")
        parent = first.ref.session_id
        child = await delegated(house, parent)
        await house.turn(CHILD, "look it up")
        session = await house.session(child)
        assert session.parent_id == parent
        view = await house.store.read(lambda uow: uow.turns.view(session))
        assert [turn.user_text for turn in view.turns] == ["look it up"]
        here = await house.lifecycle.current(CLI)
        assert here is not None
        assert here.session_id == parent


async def test_a_key_that_leaves_a_session_for_work_it_hands_over_takes_none_of_its_turns_along(
    tmp_path: Path,
) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "secret plans")).ref.session_id
        child = opened(await house.cross(CLI, New(kind=Kind.SUBAGENT, parent=parent)))
        session = await house.session(child)
        assert (session.base_turn, session.base_seq) == (0, 0)
        assert (await house.store.read(lambda uow: uow.turns.view(session))).turns == ()


async def test_somebody_elses_session_is_no_parent(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "mine")).ref.session_id
        with pytest.raises(NotFound):
            await house.lifecycle.cross(CHILD, New(kind=Kind.SUBAGENT, parent=parent), owner="somebody else")


async def test_expiry_waits_for_delegated_work_and_for_nothing_else(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "go")).ref.session_id
        await delegated(house, parent)
        ticket = await began(house, CHILD, "look it up")
        expire = Expire(ResetPolicy(idle_s=60), house.clock.now() + LATER_S)
        assert (await house.cross(CLI, expire)).refusal is Refusal.TURN_RUNNING
        await house.lifecycle.commit_turn(ticket, (), None)
        assert (await house.cross(CLI, expire)).refusal is None


async def test_a_turn_that_waits_for_the_work_goes_on_with_it_and_nobody_else(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        waits = await began(house, CLI, "have it looked up")
        child = await delegated(house, waits.ref.session_id)
        work = await began(house, CHILD, "look it up")
        await house.lifecycle.abandon_turn(work)
        await house.lifecycle.abandon_turn(waits)
        assert await house.lifecycle.recover() == (waits.turn_id,)
        again = await house.lifecycle.resume_turn(waits.turn_id)
        assert again is not None
        assert await house.lifecycle.recover() == ()
        assert await house.lifecycle.resume_turn(work.turn_id) is not None
        assert (await house.session(child)).last_turn == 0


async def test_work_that_nobody_waits_for_any_more_is_kept_as_cut_off(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        waits = await began(house, CLI, "have it looked up")
        child = await delegated(house, waits.ref.session_id)
        work = await began(house, CHILD, "look it up")
        await house.lifecycle.abandon_turn(work)
        await house.lifecycle.commit_turn(waits, (), None, interrupted=True)
        assert await house.lifecycle.recover() == ()
        turn = await house.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is not None
        assert (turn.status, turn.user_text) == (TurnStatus.INTERRUPTED, "look it up")


async def test_a_person_who_looks_at_delegated_work_and_talks_there_is_answered_after_a_crash(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "go")).ref.session_id
        child = await delegated(house, parent)
        await house.turn(CHILD, "look it up")
        await house.cross(CLI, Resume(child))
        ticket = await began(house, CLI, "what did you find?")
        await house.lifecycle.abandon_turn(ticket)
        assert await house.lifecycle.recover() == (ticket.turn_id,)


async def test_what_work_came_to_is_told_once_for_each_child(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with House(tmp_path, diary) as house:
        ref = (await house.turn(CLI, "go")).ref
        for child in ("one", "one", "two"):
            await house.lifecycle.record_delegation(ref, "look it up", "found", child)
        entries = await house.store.read(lambda uow: uow.log.of_kind(ref.session_id, EntryKind.DELEGATION))
        assert [entry.detail["child"] for entry in entries if entry.detail] == ["one", "two"]
        await house.settled()
        assert [call.more["child_session_id"] for call in diary.book.of("on_delegation")] == ["one", "two"]


@pytest.mark.parametrize("what", ["the session", "the person"])
async def test_what_a_forgotten_session_handed_over_is_forgotten_with_it(tmp_path: Path, what: str) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "go")).ref.session_id
        child = await delegated(house, parent)
        await house.turn(CHILD, "look up the secret")
        forgotten = ForgetSession(parent) if what == "the session" else ForgetOwner()
        await house.lifecycle.forget(forgotten, owner=ME)
        assert (await house.session(child)).forgotten_seq is not None
        turn = await house.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is None or "secret" not in turn.user_text
        entries = await house.store.read(lambda uow: uow.log.of_kind(child, EntryKind.FORGET))
        assert len(entries) == 1


async def test_delegated_work_is_no_conversation_in_lists(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "go")).ref.session_id
        child = await delegated(house, parent)
        listed = await house.store.read(lambda uow: uow.sessions.conversations(9))
        assert [session.id for session in listed] == [parent]
        everything = await house.store.read(lambda uow: uow.sessions.conversations(9, delegated=True))
        assert {session.id for session in everything} == {parent, child}


async def test_work_that_nobody_has_begun_is_set_aside_once_the_turn_that_handed_it_over_is_over(
    tmp_path: Path,
) -> None:
    async with House(tmp_path) as dead:
        ticket = await began(dead, CLI, "look it up for me")
        child = await delegated(dead, ticket.ref.session_id)
        await dead.lifecycle.accept(Inbound(CHILD, ME, "look it up"))
        assert await dead.lifecycle.recover() == ()
        assert await dead.store.read(lambda uow: uow.inbox.keys_waiting()) == (CHILD,), "its turn still waits for it"
        await dead.cross(CLI, New())
    async with House(tmp_path) as house:
        await house.later(LATER_S)
        assert await house.lifecycle.recover() == ()
        assert await house.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        turn = await house.store.read(lambda uow: uow.turns.get(child, 1))
        assert turn is not None
        assert (turn.user_text, turn.status) == ("look it up", TurnStatus.SET_ASIDE)


async def test_work_that_nobody_had_begun_is_forgotten_with_its_session(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        parent = (await house.turn(CLI, "secret plans")).ref.session_id
        child = await delegated(house, parent)
        row, _ = await house.lifecycle.accept(Inbound(CHILD, ME, "look it up"))
        await house.lifecycle.accept(Inbound(CLI, ME, "and another thing"))
        await house.lifecycle.forget(ForgetSession(child), owner=ME)
        assert await house.store.read(lambda uow: uow.inbox.first_waiting(CHILD)) is None
        stored = await house.store.read(lambda uow: uow.inbox.get(row.id))
        assert stored is not None
        assert (stored.state, stored.inbound.text) == (InboxState.SET_ASIDE, "[forgotten]")
        # What waits where people talk is answered in the next conversation.
        assert await house.store.read(lambda uow: uow.inbox.first_waiting(CLI)) is not None
