"""What keeps one person, plugin or damaged row from being everybody's problem."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, Call, CoreFixture, opened, until

from everthread import plugins
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.boundary import Branch, Compress, Forget, New, Reset, Resume, Rewind, Suspend
from everthread.domain.errors import BadInput, BadKey, NotFound, Rejected, Unavailable
from everthread.domain.events import EntryKind
from everthread.domain.model import ChatType, Inbound, NoteAction, NoteTarget, SessionKey, SessionKind
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import ForgetFact, ForgetSession, NoteChange
from everthread.memory.delivery_results import Limits


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("boundary", [Branch(), Rewind(1), Compress("", 0, "s", 0)])
async def test_a_stranger_on_a_key_can_do_nothing_to_the_session_there(tmp_path: Path, boundary: Branch) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.turn(CLI, "mine")
        here = await core.at(CLI)
        with pytest.raises(NotFound):
            await core.cross(CLI, boundary, owner="stranger")
        assert await core.at(CLI) == here


@pytest.mark.parametrize("boundary", [New(), Reset()])
async def test_a_stranger_on_a_key_starts_afresh_and_sees_nothing(tmp_path: Path, boundary: New) -> None:
    async with CoreFixture(tmp_path) as core:
        mine = (await core.turn(CLI, "mine")).ref
        theirs = (await core.cross(CLI, boundary, owner="stranger")).ref
        assert theirs is not None
        assert theirs.owner == "stranger"
        assert await core.shown(theirs.session_id) == []
        with pytest.raises(NotFound):
            await core.cross(CLI, Resume(mine.session_id), owner="stranger")


async def test_a_process_that_stops_leaves_a_key_alone_that_a_stranger_has_taken_over(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core, CoreFixture(tmp_path) as elsewhere:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        # What was served here was left while another process took over the turn that still ran.
        await core.store.write(lambda uow: uow.sessions.serve(core.holder, mine, TELEGRAM))
        await elsewhere.turn(TELEGRAM, "theirs", owner="stranger")
        crossings = await core.lifecycle.suspend(close_memory=True)
        assert [crossing.left for crossing in crossings] == [mine]


async def test_who_resumes_a_scheduled_session_is_remembered_again_afterwards(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.cross(TELEGRAM, New(kind=SessionKind.CRON))
        scheduled = (await core.turn(TELEGRAM, "water the plants")).ref.session_id
        await core.turn(CLI, "hello")
        await core.cross(CLI, Resume(scheduled))
        assert (await core.session(opened(await core.cross(CLI, New())))).kind is SessionKind.CHAT
        assert (await core.session(opened(await core.cross(TELEGRAM, New())))).kind is SessionKind.CRON


async def test_a_key_that_is_left_for_good_sets_its_messages_aside_in_its_session(tmp_path: Path) -> None:
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


async def test_a_stranger_who_comes_to_an_expired_session_is_answered_in_a_new_one(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=60.0))
    async with CoreFixture(tmp_path, policies=policies) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        # Nobody serves timers here: the message itself must find out that the session is over.
        core.clock.ahead_s += 3600.0
        theirs = (await core.turn(CLI, "theirs", owner="stranger")).ref
        assert (theirs.owner, theirs.session_id != mine) == ("stranger", True)
        assert (await core.session(mine)).end_reason == "idle"


async def test_a_key_too_long_to_be_read_back_is_refused_at_the_door(tmp_path: Path) -> None:
    key = SessionKey("main", "telegram", ChatType.DM, "9" * 600)
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.lifecycle.accept(Inbound(key, "me", "hello"))
        with pytest.raises(BadKey):
            await core.cross(key, New())


async def test_a_plugin_may_be_async(tmp_path: Path) -> None:
    heard: list[str] = []

    class Later:
        @plugins.hookimpl
        async def on_session_finalize(self, session_id: str) -> None:
            heard.append(session_id)

    async with CoreFixture(tmp_path, plugins=(Later(),)) as core:
        left = (await core.turn(CLI, "hello")).ref.session_id
        await core.cross(CLI, New())
        await until(lambda: heard == [left])


async def test_a_lane_that_cannot_be_read_is_reported_and_holds_up_no_other(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:
        broken = (await core.turn(CLI, "first")).ref.session_id
        await core.settled()

        def damage(uow: object) -> None:
            uow.log._execute("DELETE FROM messages")  # type: ignore[attr-defined] # noqa: SLF001 - damage on purpose
            uow.log._execute("DELETE FROM turns")  # type: ignore[attr-defined] # noqa: SLF001

        await core.store.write(damage)
        await core.memory.journal.replay("diary", broken)
        await core.reported("memory:diary", "can't be read")
        other = (await core.turn(TELEGRAM, "second")).ref.session_id
        await until(lambda: "second" in [call.text for call in diary.book.of("sync_turn", other)])


async def test_what_was_delivered_stays_so_though_the_next_entry_cannot_be_read(tmp_path: Path) -> None:
    diary, gate = AsyncDiary(), asyncio.Event()

    async def wait(call: Call) -> None:
        await gate.wait()

    diary.before = wait
    async with CoreFixture(tmp_path, diary) as core:
        session = (await core.turn(CLI, "first")).ref.session_id
        await core.turn(CLI, "second")
        await until(lambda: diary.book.begun)

        def damage(uow: object) -> None:
            uow.log._execute("DELETE FROM turns WHERE number = 2")  # type: ignore[attr-defined] # noqa: SLF001

        await core.store.write(damage)
        diary.before = None
        gate.set()
        await core.reported("memory:diary", "can't be read")
        cursor = await core.store.read(lambda uow: uow.cursors.get("diary", session))
        assert cursor is not None
        first = await core.store.read(lambda uow: uow.log.of_kind(session, EntryKind.TURN)[0])
        assert cursor.seq == first.seq
        assert diary.book.told(session) == ["switch", "first"]


async def test_what_a_provider_said_of_a_session_is_forgotten_with_it(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary) as core:

        async def refuse(call: Call) -> None:
            if call.hook == "sync_turn":
                raise Rejected("diary", f"I will not keep {call.text!r}")

        diary.before = refuse
        session = (await core.turn(CLI, "the elephant in Odense")).ref.session_id
        await core.reported("memory:diary", "elephant")
        await core.lifecycle.forget(ForgetSession(session), owner="me")
        assert not [text for text in await core.incidents() if "elephant" in text]
        assert b"elephant" not in stored(tmp_path)


async def test_a_forgotten_fact_leaves_titles_and_stays_findable_around(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = (await core.turn(CLI, "my cat Mog sleeps on the piano")).ref
        await core.lifecycle.rename(session.session_id, "cat Mog", owner="me")
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, "cat Mog")
        note = await core.lifecycle.write_note(change, owner="me", ref=session)
        await core.lifecycle.forget(ForgetFact(note.note_id), owner="me")
        assert (await core.session(session.session_id)).title is None
        hits = await core.search("me", "piano", limit=5)
        assert "my [forgotten] sleeps on the piano" in [hit.content for hit in hits]
        assert await core.search("me", "Mog", limit=5) == ()


async def test_a_message_of_somebody_else_that_waits_is_never_put_into_my_session(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        mine = (await core.turn(CLI, "mine")).ref.session_id
        await core.lifecycle.accept(Inbound(CLI, "bob", "bob's secret"))
        theirs = await core.cross(CLI, New(), owner="bob")
        assert [row.inbound.text for row in theirs.set_aside] == ["bob's secret"]
        assert await core.search("me", "secret", limit=5) == ()
        hits = await core.search("bob", "secret", limit=5)
        assert [hit.session_id for hit in hits] == [opened(theirs)]
        assert opened(theirs) != mine


@pytest.mark.parametrize(
    "key",
    [
        SessionKey("main", "cli", ChatType.DM, ""),
        SessionKey("", "cli", ChatType.DM, "1"),
        SessionKey("main", "cli", ChatType.DM, "\ud83d"),
        SessionKey("main", "cli", ChatType.DM, "1", thread=""),
    ],
)
async def test_a_key_that_would_not_be_read_back_is_refused(tmp_path: Path, key: SessionKey) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.lifecycle.accept(Inbound(key, "me", "hello"))
        with pytest.raises(BadKey):
            await core.lifecycle.begin_turn(key)


@pytest.mark.parametrize("owner", ["", "o" * 10_000, "\ud83d"])
async def test_an_owner_is_somebody(tmp_path: Path, owner: str) -> None:
    async with CoreFixture(tmp_path) as core:
        with pytest.raises(BadInput):
            await core.note("likes tea", owner=owner)


async def test_a_note_of_an_owner_with_a_long_foreign_name_is_kept(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        note = await core.note("likes tea", owner="語" * 200)
        assert note.owner == "語" * 200


async def test_update_ids_that_say_nothing_make_no_duplicates(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        taken = [(await core.lifecycle.accept(Inbound(CLI, "me", text, update_id="")))[1] for text in ("a", "b")]
        assert taken == [True, True]


async def test_a_session_can_only_be_forgotten_with_its_words(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        session = (await core.turn(CLI, "hello")).ref.session_id
        with pytest.raises(TypeError, match="forget"):
            await core.cross(CLI, Forget(session))


async def test_a_session_that_somebody_only_goes_back_to_expires_too(tmp_path: Path) -> None:
    """Nothing is said after it: the boundary alone must set the timer."""
    async with CoreFixture(tmp_path, policies=ResetPolicies(ResetPolicy(idle_s=10.0))) as core:
        old = (await core.turn(TELEGRAM, "first")).ref.session_id
        assert (await core.cross(CLI, Resume(old))).ref is not None
        due = await core.store.read(lambda uow: uow.leases.due_timers(core.clock.now() + 3600.0, 10))
        assert {timer.key for timer in due} == {TELEGRAM, CLI}


async def test_what_a_key_is_for_outlives_its_sessions(tmp_path: Path) -> None:
    policies = ResetPolicies(ResetPolicy(idle_s=10.0))
    async with CoreFixture(tmp_path, policies=policies) as core:
        await core.cross(CLI, New(kind=SessionKind.CRON))
        await core.turn(CLI, "first")
        core.clock.ahead_s += 3600.0
        after_expiry = (await core.turn(CLI, "second")).ref.session_id
        after_reset = opened(await core.cross(CLI, Reset()))
        for session_id in (after_expiry, after_reset):
            assert (await core.session(session_id)).kind is SessionKind.CRON


async def test_tool_calls_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, "me", "look"))
        ticket = await core.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(BadInput, match="call_0"):
            await core.lifecycle.start_tool(ticket, "call_0", "look", "{}")
        with pytest.raises(NotFound, match="call_9"):
            await core.lifecycle.finish_tool(ticket, "call_9", "seen")


async def test_a_process_that_stops_keeps_its_running_turn_until_it_is_gone(tmp_path: Path) -> None:
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


async def test_a_turn_that_does_not_end_in_time_is_anybodys_after_the_stop(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as stopping, Runtime(Settings(tmp_path)) as other:
        await stopping.start()
        await stopping.lifecycle.accept(Inbound(CLI, "me", "hello"))
        ticket = await stopping.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await stopping.stop(0.1)
        assert await other.lifecycle.recover() == (ticket.turn_id,)


async def test_the_oldest_lanes_are_found_without_looking_at_all_of_them(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:

        def plans(uow: Any) -> list[str]:
            execute = uow.cursors._execute  # noqa: SLF001 - the plan of a query is nobody's business but the database's
            sql = "SELECT due_at, session_id FROM {} WHERE provider = ? AND due_at <= ? ORDER BY due_at LIMIT ?"
            rows = [
                row
                for table in ("cursors", "redeliveries")
                for row in execute(f"EXPLAIN QUERY PLAN {sql}".format(table), ("p", 1, 9))
            ]
            return [row[3] for row in rows]

        found = await core.store.read(plans)
        assert len(found) == 2
        assert all("USING" in plan and "INDEX" in plan and "(provider=?" in plan for plan in found)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("can't even say it")


async def test_an_error_that_cannot_be_told_neither_spins_nor_stops_the_lane(tmp_path: Path) -> None:
    diary = AsyncDiary()
    tries = 0

    async def fail(call: Call) -> None:
        nonlocal tries
        tries += 1
        raise Unspeakable if tries > 1 else Rejected("diary", "no")

    async with CoreFixture(tmp_path, diary) as core:
        await core.turn(CLI, "hello")
        await core.settled()
        diary.before = fail
        await core.turn(CLI, "again")
        await core.reported("memory:diary", "no")
        await core.memory.journal.retry("diary")
        await until(lambda: tries >= 3)
        await asyncio.sleep(0.1)
        assert tries < 50


async def test_a_delivery_that_fails_after_the_forgetting_tells_nothing(tmp_path: Path) -> None:
    diary = AsyncDiary()
    begun, go = asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> None:
        if call.hook == "sync_turn":
            begun.set()
            await go.wait()
            raise Unavailable("diary", f"can't keep {call.text}")

    diary.before = hold
    async with CoreFixture(tmp_path, diary, limits=Limits(attempt_s_max=5.0, backoff_s=0.01)) as core:
        session = (await core.turn(CLI, "the zebra in Ribe")).ref.session_id
        await begun.wait()
        await core.lifecycle.forget(ForgetSession(session), owner="me")
        go.set()
        await core.settled()
        assert b"zebra" not in stored(tmp_path)
