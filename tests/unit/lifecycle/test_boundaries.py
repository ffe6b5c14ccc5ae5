from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, CoreFixture, opened

from everthread.domain.boundary import Branch, Compress, Forget, New, Refusal, Reset, Resume, Rewind, Suspend
from everthread.domain.errors import NotFound
from everthread.domain.model import Inbound, Session, SessionKey, SessionKind
from everthread.domain.reset_policy import ResetPolicies, ResetPolicy
from everthread.lifecycle import ForgetSession
from everthread.plugins import hookimpl

WORK = SessionKey.parse("agent:main:schedules:dm:garden")
UNATTENDED = pytest.mark.parametrize("kind", [SessionKind.CRON, SessionKind.SUBAGENT])


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


async def unattended(core: CoreFixture, kind: SessionKind, text: str = "water the plants") -> str:
    """Run a turn of scheduled or delegated work at the key WORK, and return its session."""
    asked = (await core.turn(TELEGRAM, "see to it")).ref.session_id
    await core.cross(WORK, New(kind=kind, parent=asked if kind is SessionKind.SUBAGENT else ""))
    return (await core.turn(WORK, text)).ref.session_id


@UNATTENDED
@pytest.mark.parametrize("move", [Resume, lambda session_id: Branch(parent=session_id)], ids=["resume", "branch"])
async def test_a_person_who_takes_up_unattended_work_is_remembered(
    tmp_path: Path, kind: SessionKind, move: Callable[[str], Resume | Branch]
) -> None:
    diary = AsyncDiary()
    async with CoreFixture(tmp_path, diary, review_every=1) as core:
        work = await unattended(core, kind)
        await core.turn(CLI, "hello")
        chat = opened(await core.cross(CLI, move(work)))
        assert chat != work
        session = await core.session(chat)
        assert (session.kind, session.key, session.parent_id) == (SessionKind.CHAT, CLI, work)
        assert await core.shown(chat) == ["water the plants"]

        await core.turn(CLI, "which plants?")
        await core.cross(CLI, New())
        await core.settled()
        assert diary.book.told(chat) == ["switch", "which plants?", "end"]
        assert diary.book.told(work) == []
        (end,) = diary.book.of("on_session_end", chat)
        shown = [(turn.user_text, turn.inherited) for turn in end.view.turns]
        assert shown == [("water the plants", True), ("which plants?", False)]
        reviews = await core.store.read(lambda uow: uow.reviews.of_session(chat))
        assert [(row.window.from_turn, row.window.to_turn) for row in reviews] == [(2, 2)]


@UNATTENDED
async def test_unattended_work_goes_on_beside_the_chat_branch(tmp_path: Path, kind: SessionKind) -> None:
    async with CoreFixture(tmp_path) as core:
        work = await unattended(core, kind)
        chat = opened(await core.cross(CLI, Resume(work)))
        await core.turn(CLI, "which plants?")
        assert (await core.turn(WORK, "water them again")).ref.session_id == work
        assert (await core.session(work)).kind is kind
        assert await core.shown(work) == ["water the plants", "water them again"]
        assert await core.shown(chat) == ["water the plants", "which plants?"]


@pytest.mark.parametrize("compressed", [False, True])
async def test_resume_of_unattended_work_stays_on_the_branch_of_the_key(tmp_path: Path, compressed: bool) -> None:
    async with CoreFixture(tmp_path) as core:
        work = await unattended(core, SessionKind.CRON)
        await core.cross(CLI, Resume(work))
        await core.turn(CLI, "which plants?")
        if compressed:
            await core.cross(CLI, await core.compression(CLI))
        here = await core.at(CLI)
        again = await core.cross(CLI, Resume(work))
        assert (again.refusal, again.ref) == (Refusal.ALREADY_THERE, here)
        # Another key gets a branch of its own.
        assert opened(await core.cross(TELEGRAM, Resume(work))) not in (work, here.session_id)


async def test_a_chat_branch_of_titled_work_is_numbered(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        work = await unattended(core, SessionKind.CRON)
        await core.lifecycle.rename(work, "Garden", owner=ME)
        assert (await core.session(opened(await core.cross(CLI, Resume(work))))).title == "Garden #2"
        await core.cross(CLI, New())
        assert (await core.session(opened(await core.cross(CLI, Resume(work))))).title == "Garden #3"


@pytest.mark.parametrize(("kind", "copied"), [(SessionKind.CRON, False), (SessionKind.CHAT, True)])
async def test_a_chat_branch_builds_its_own_prompt(tmp_path: Path, kind: SessionKind, copied: bool) -> None:
    async with CoreFixture(tmp_path) as core:
        work = await unattended(core, kind)
        await core.lifecycle.put_prefix(await core.at(WORK), b"You work alone.", 0)
        branch = opened(await core.cross(CLI, Branch(parent=work)))
        prefix = await core.store.read(lambda uow: uow.turns.prefix(branch))
        assert (prefix is not None) is copied


async def test_a_key_keeps_its_kind_when_it_resumes_a_session_of_another_kind(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        chat = (await core.turn(CLI, "hello")).ref.session_id
        await unattended(core, SessionKind.CRON)
        assert opened(await core.cross(WORK, Resume(chat))) == chat
        assert (await core.session(opened(await core.cross(WORK, New())))).kind is SessionKind.CRON
        assert (await core.session(opened(await core.cross(CLI, New())))).kind is SessionKind.CHAT


async def test_a_branch_opened_elsewhere_belongs_to_the_key_that_asked(tmp_path: Path) -> None:
    started: list[Session] = []

    class Plugin:
        @hookimpl
        def on_session_start(self, session: Session) -> None:
            started.append(session)

    async with CoreFixture(tmp_path, plugins=(Plugin(),)) as core:
        parent = (await core.turn(TELEGRAM, "hello")).ref.session_id
        branch = opened(await core.cross(CLI, Branch(parent=parent)))
        await core.settled()
        assert (await core.session(branch)).key == CLI
        assert [(session.id, session.key) for session in started] == [(parent, TELEGRAM), (branch, CLI)]


@pytest.mark.parametrize("opens", ["a command", "a message"])
async def test_a_session_after_a_forgotten_one_calls_the_reset_hook(tmp_path: Path, opens: str) -> None:
    calls: list[tuple[str, str]] = []

    class Plugin:
        @hookimpl
        def on_session_finalize(self, session_id: str, platform: str) -> None:
            calls.append(("finalize", session_id))

        @hookimpl
        def on_session_reset(self, session_id: str, platform: str) -> None:
            calls.append(("reset", session_id))

    async with CoreFixture(tmp_path, plugins=(Plugin(),)) as core:
        first = (await core.turn(CLI, "my secret")).ref.session_id
        await core.lifecycle.forget(ForgetSession(first), owner=ME)
        if opens == "a command":
            await core.cross(CLI, New())
        else:
            await core.turn(CLI, "hello again")
        second = (await core.at(CLI)).session_id
        await core.settled()
        assert calls == [("finalize", first), ("reset", second)]


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
        core.clock.advance(3600.0)
        after_expiry = (await core.turn(CLI, "second")).ref.session_id
        after_reset = opened(await core.cross(CLI, Reset()))
        for session_id in (after_expiry, after_reset):
            assert (await core.session(session_id)).kind is SessionKind.CRON


async def test_a_process_serves_the_continuation_of_the_session_that_it_served(tmp_path: Path) -> None:
    finalized: list[str] = []

    class Plugin:
        @hookimpl
        def on_session_finalize(self, session_id: str) -> None:
            finalized.append(session_id)

    async with CoreFixture(tmp_path, plugins=(Plugin(),)) as core:
        await core.turn(CLI, "hello")
        tip = opened(await core.cross(CLI, await core.compression(CLI)))
        assert [crossing.left for crossing in await core.lifecycle.suspend()] == [tip]
        await core.settled()
        assert finalized == [tip]
