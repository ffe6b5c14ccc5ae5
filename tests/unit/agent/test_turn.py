"""One turn from the message to the commit: failures, stops, recovery, memory and notices."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.notices import NoticeRecorder
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, Gate, opened, until

from everthread.agent.events import TextWritten, TurnBegan, TurnEnded
from everthread.agent.transcript import INTERRUPTED, OUTCOME_UNKNOWN, STOPPED
from everthread.agent.turn_options import TurnLimits
from everthread.agent.turn_state import FENCE_MAX
from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.errors import (
    Busy,
    DiskFull,
    ModelRefused,
    ModelUnauthorized,
    StoreBusy,
)
from everthread.domain.model import (
    Role,
    SessionKey,
    SessionKind,
    SessionRef,
    ToolCall,
    TurnStatus,
)
from everthread.domain.spend import Price
from everthread.lifecycle import ForgetSession, TurnClaim
from everthread.ports.memory import RecallItem
from everthread.ports.model import Finish, Traits
from everthread.ports.tools import ToolUse

LOOK = ToolCall("c1", "look", "{}")


# --- Basics ----------------------------------------------------------------------------------------------------------


async def test_no_turn_runs_without_a_waiting_message(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path) as core:
        assert await core.agent.answer(CLI, core.options()) is None
        assert core.model.requests == []


async def test_the_model_gets_the_earlier_turns(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one", "two"])) as core:
        await core.ask("first")
        await core.ask("second")
        assert "first" in core.model.requests[1].history.decode()
        assert "second" not in core.model.requests[1].history.decode()
        assert core.model.requests[1].head == core.model.requests[0].head


async def test_a_second_turn_of_a_session_waits_for_the_first(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["a b c d"], pause_s=0.02)) as core:
        await core.say("one")
        await core.say("two")
        first = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        with pytest.raises(Busy):
            await core.agent.answer(CLI, core.options())
        await first
        assert await core.agent.answer(CLI, core.options()) is not None


# --- Limits and failures ---------------------------------------------------------------------------------------------


async def test_a_message_that_no_model_answers_is_kept_and_the_chat_continues(tmp_path: Path) -> None:
    model = FakeModel([ModelUnauthorized("no key is set; set KEY"), "better now"])
    async with AgentFixture(tmp_path, model) as core:
        ended = await core.ask("hello")
        assert (ended.text, ended.problem) == ("", "no key is set; set KEY")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        assert (await core.ask("and now?")).text == "better now"
        assert "hello" in core.model.requests[-1].history.decode()
        assert INTERRUPTED in core.model.requests[-1].history.decode()


async def test_an_answer_cut_by_the_length_limit_is_reported(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["only the beg"], finish=Finish.LENGTH)) as core:
        ended = await core.ask("tell me")
        assert ended.committed.status is TurnStatus.DONE
        assert "cut at" in ended.problem


# --- Spend -----------------------------------------------------------------------------------------------------------


async def _spent(core: AgentFixture, owner: str = ME) -> float:
    return await core.store.read(lambda uow: uow.spend.total(owner, 0.0))


# --- Stopping, rewinding, cancelling ---------------------------------------------------------------------------------


async def test_s29_a_stopped_answer_is_kept_and_marked(tmp_path: Path) -> None:
    diary = AsyncDiary()
    model = FakeModel(["one two three four five six"], pause_s=0.02)
    async with AgentFixture(tmp_path, model, diary) as core:
        await core.say("count")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: len([e for e in core.heard if isinstance(e, TextWritten)]) >= 2)
        session_id = (await core.at(CLI)).session_id
        assert core.agent.stop(session_id)
        ended = await turn
        assert ended is not None
        assert (ended.committed.status, ended.problem) == (TurnStatus.INTERRUPTED, "stopped")
        (stored,) = await core.turns(session_id)
        assert stored.user_text == "count"
        assert stored.assistant_text.startswith("one two")
        assert model.cut_off == 1
        model.lines, model.pause_s = ["fine"], 0.0
        await core.ask("go on")
        assert INTERRUPTED in model.requests[-1].history.decode()
        await core.settled()
        first = diary.book.of("sync_turn", session_id)[0]
        assert (first.text, first.more["status"]) == ("count", "interrupted")


async def test_a_stopped_tool_has_an_unknown_outcome(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def long(arguments: Mapping[str, Any], use: ToolUse) -> str:
        started.set()
        await asyncio.sleep(30)
        return ""

    calls = [ToolCall("a", "quick", "{}"), ToolCall("b", "long", "{}")]
    tools = (tool("quick", says_nothing), tool("long", long))
    async with AgentFixture(tmp_path, FakeModel([calls, "fine"]), tools=tools) as core:
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await started.wait()
        core.agent.stop((await core.at(CLI)).session_id)
        ended = await turn
        assert ended is not None
        (stored,) = await core.turns(ended.committed.ref.session_id)
        assert [m.content for m in stored.messages if m.role is Role.TOOL] == ["nothing", STOPPED]
        assert (await core.ask("and now?")).text == "fine"


async def test_a_turn_ends_in_its_own_session_after_a_boundary(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one two three four"], pause_s=0.02)) as core:
        await core.say("count")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: any(isinstance(event, TextWritten) for event in core.heard))
        old = (await core.at(CLI)).session_id
        new = opened(await core.cross(CLI, New()))
        core.agent.stop(old, "left by /new")
        ended = await turn
        assert ended is not None
        assert (ended.committed.status, ended.committed.ref.session_id) == (TurnStatus.LATE, old)
        assert await core.shown(new) == []
        core.model.lines, core.model.pause_s = ["hello"], 0.0
        await core.ask("hi")
        assert "count" not in core.model.sent()


async def test_a_rewound_turn_is_stored_hidden(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one two three four"], pause_s=0.02)) as core:
        await core.say("count")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        session_id = (await core.at(CLI)).session_id
        await core.cross(CLI, Rewind(1))
        core.agent.stop(session_id)
        ended = await turn
        assert ended is not None
        assert ended.committed.status is TurnStatus.HIDDEN
        core.model.lines, core.model.pause_s = ["hello"], 0.0
        await core.ask("hi")
        assert "count" not in core.model.sent()


async def test_a_cancelled_task_leaves_its_turn_to_recovery(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one two three four", "fresh"], pause_s=0.02)) as core:
        await core.say("count")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        turn.cancel()
        await asyncio.wait({turn})
        assert turn.cancelled()
        (turn_id,) = await core.lifecycle.recover()
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert ended.text == "fresh"


# --- Recovery --------------------------------------------------------------------------------------------------------


async def test_a_turn_claimed_during_a_cancellation_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AgentFixture(tmp_path) as core:
        begin = core.lifecycle.begin_turn

        async def begin_slowly(key: SessionKey) -> TurnClaim | None:
            ticket = await begin(key)
            await asyncio.sleep(0.05)
            return ticket

        monkeypatch.setattr(core.lifecycle, "begin_turn", begin_slowly)
        await core.say("hello")
        answering = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        for _ in range(2):
            await asyncio.sleep(0.02)
            answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        monkeypatch.undo()
        (turn_id,) = await core.lifecycle.recover()
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert ended.text == "fine"


async def test_a_turn_of_a_dead_process_is_continued(tmp_path: Path) -> None:
    """Stored tool results are reused; a tool that was only started is neither run again nor taken as done."""
    ran: list[str] = []

    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        ran.append(use.call_id)
        return "a tree"

    async with AgentFixture(tmp_path) as dead:
        await dead.say("what is there?")
        ticket = await dead.lifecycle.begin_turn(CLI)
        assert ticket is not None
        await dead.lifecycle.start_tool(ticket, "c1", "look", "{}")
        await dead.lifecycle.finish_tool(ticket, "c1", "a tree")
        await dead.lifecycle.start_tool(ticket, "c2", "look", "{}")
    async with AgentFixture(tmp_path, FakeModel(["a tree, I believe"]), tools=(tool("look", look),)) as core:
        await core.later(3600)
        (turn_id,) = await core.lifecycle.recover()
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert ended.text == "a tree, I believe"
        assert ran == []
        results = [m.content for m in core.model.requests[0].tail if m.role is Role.TOOL]
        assert results == ["a tree", OUTCOME_UNKNOWN]
        assert await core.lifecycle.recover() == ()
        assert isinstance(core.heard[0], TurnBegan)
        assert core.heard[0].recovered


async def test_a_turn_that_another_process_took_over_is_dropped(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["slow and late"], pause_s=0.05)) as stopped:
        await stopped.say("hello")
        turn = asyncio.ensure_future(stopped.agent.answer(CLI, stopped.options()))
        await until(lambda: stopped.model.requests)
        async with AgentFixture(tmp_path, FakeModel(["quick"])) as other:
            await other.later(3600)
            (turn_id,) = await other.lifecycle.recover()
            ended = await other.agent.resume(turn_id, other.options())
            assert ended is not None
            assert await turn is None
            assert len(await other.turns(ended.committed.ref.session_id)) == 1


# --- Memory ----------------------------------------------------------------------------------------------------------


async def test_recall_is_sent_at_the_tail_and_never_stored(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def recalls(query: str, ref: SessionRef) -> list[RecallItem]:
        return [RecallItem("The dog is called Bruno.", session_id="old", turn=3, at=0.0)]

    diary.recalls = recalls
    async with AgentFixture(tmp_path, FakeModel(["Bruno!"]), diary) as core:
        ended = await core.ask("what is my dog called?")
        assert "Bruno" in core.model.requests[0].recall
        assert "old" in core.model.requests[0].recall
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert turn.messages[0].content == "what is my dog called?"
        await core.ask("thanks")
        assert "The dog is called" not in core.model.requests[1].history.decode()


async def test_a_hanging_provider_delays_an_answer_only_up_to_its_deadline(tmp_path: Path) -> None:
    diary = AsyncDiary()

    async def recalls(query: str, ref: SessionRef) -> list[RecallItem]:
        await asyncio.sleep(30)
        return []

    diary.recalls = recalls
    async with AgentFixture(tmp_path, FakeModel(["hi"]), diary, turn_limits=TurnLimits(recall_s=0.05)) as core:
        async with asyncio.timeout(5):
            assert (await core.ask("hello")).text == "hi"


async def test_a_small_model_gets_no_tools(tmp_path: Path) -> None:
    model = FakeModel(["hi"], given_traits=Traits(tools=False, small=True))
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        await core.ask("hello")
        assert "look" not in model.sent()


async def test_a_long_history_is_cut_to_the_context_of_the_model(tmp_path: Path) -> None:
    model = FakeModel(["word " * 200], given_traits=Traits(context_tokens=3000))
    async with AgentFixture(tmp_path, model) as core:
        for number in range(20):
            await core.ask(f"question {number}")
        assert all(len(request.history) < 6000 for request in model.requests)
        assert "question 18" in model.requests[-1].history.decode()
        kept = sum(
            later.history.startswith(earlier.history)
            for earlier, later in zip(model.requests, model.requests[1:], strict=False)
        )
        assert kept > 10


# --- Prompt and history ----------------------------------------------------------------------------------------------


async def test_s23_a_branch_keeps_the_prefix_and_the_history(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        parent = (await core.ask("shared")).committed.ref.session_id
        child = opened(await core.cross(CLI, Branch()))
        await core.ask("only in the child")
        assert core.model.requests[1].head == core.model.requests[0].head
        assert "shared" in core.model.requests[1].history.decode()
        await core.cross(CLI, Resume(parent))
        await core.ask("only in the parent")
        assert "only in the child" not in core.model.sent()
        assert await core.shown(child) == ["shared", "only in the child"]
        assert await core.shown(parent) == ["shared", "only in the parent"]


async def test_files_written_for_the_agent_are_in_its_prompt(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("I am Ada, and dry as dust.")
    (tmp_path / "AGENTS.md").write_text("Never use exclamation marks.")
    async with AgentFixture(tmp_path) as core:
        await core.note("The user likes tea.")
        await core.ask("hello")
        head = core.model.requests[0].head.decode()
        assert "dry as dust" in head
        assert "exclamation marks" in head
        assert "likes tea" in head
        (tmp_path / "SOUL.md").write_text("I am somebody else.")
        await core.note("The user likes coffee.")
        await core.ask("still there?")
        assert core.model.requests[1].head.decode() == head
        await core.cross(CLI, New())
        await core.ask("hello again")
        assert "somebody else" in core.model.requests[2].head.decode()
        assert "coffee" in core.model.requests[2].head.decode()


async def test_an_overlong_file_is_reported_as_a_problem(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("rule " * 10_000)
    async with AgentFixture(tmp_path) as core:
        assert "AGENTS.md has more than" in (await core.ask("hello")).problem
        (tmp_path / "AGENTS.md").write_text("short")
        assert (await core.ask("hello")).problem == ""


async def test_requests_are_valid_after_every_kind_of_turn(tmp_path: Path) -> None:
    """The fake model refuses the requests that a real endpoint would refuse."""
    model = FakeModel([LOOK, ModelRefused("no"), [LOOK, LOOK], "two looks", "fine"])
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        problems = [(await core.ask(text)).problem for text in ("one", "two", "three")]
        assert problems == ["no", "", ""]


async def test_the_end_of_the_turn_is_the_last_event(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "x"]), tools=(tool("look", says_nothing),)) as core:
        await core.ask("go")
        assert [type(event) for event in core.heard].count(TurnEnded) == 1
        assert isinstance(core.heard[-1], TurnEnded)


# --- Forgotten history and store failures ----------------------------------------------------------------------------


async def test_a_branch_of_a_forgotten_conversation_with_tools_continues(tmp_path: Path) -> None:
    """The model refuses a tool result without its call."""
    look = tool("look", says_nothing)
    async with AgentFixture(tmp_path, FakeModel([LOOK, "a tree", "still here"]), tools=(look,)) as core:
        parent = (await core.ask("what is there?")).committed.ref.session_id
        await core.cross(CLI, Branch())
        await core.lifecycle.forget(ForgetSession(parent), owner=ME)
        ended = await core.ask("are you there?")
        assert (ended.text, ended.problem) == ("still here", "")
        assert "tree" not in core.model.sent()


async def test_a_turn_that_could_not_be_committed_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AgentFixture(tmp_path, FakeModel(["lost", "found"])) as core:

        async def full(*args: Any, **more: Any) -> Any:
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(core.lifecycle, "commit_turn", full)
            with pytest.raises(DiskFull):
                await core.ask("hello")
        (turn_id,) = await core.lifecycle.recover()
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert ended.text == "found"


async def test_a_busy_store_is_retried_at_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AgentFixture(tmp_path, FakeModel(["still here"])) as core:
        commit, refusals = core.lifecycle.commit_turn, [StoreBusy("busy")]

        async def busy(*args: Any, **more: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return await commit(*args, **more)

        monkeypatch.setattr(core.lifecycle, "commit_turn", busy)
        assert (await core.ask("hello")).text == "still here"


async def test_a_turn_that_never_completes_is_given_up(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path) as core:
        await core.say("a message that kills")
        ticket = await core.lifecycle.begin_turn(CLI)
        for _ in range(FENCE_MAX // 2 + 1):
            assert ticket is not None
            await core.lifecycle.abandon_turn(ticket)
            (turn_id,) = await core.lifecycle.recover()
            ticket = await core.lifecycle.resume_turn(turn_id)
        assert ticket is not None
        await core.lifecycle.abandon_turn(ticket)
        ended = await core.agent.resume(ticket.turn_id, core.options())
        assert ended is not None
        assert "given up" in ended.problem
        assert core.model.requests == []


# --- Costs and suspended processes -----------------------------------------------------------------------------------


async def test_the_cost_of_a_cancelled_turn_is_settled_before_its_recovery(tmp_path: Path) -> None:
    model = FakeModel(["a b c d e f"], pause_s=0.02)
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: any(isinstance(event, TextWritten) for event in core.heard))
        assert await _spent(core) > 0.1, "the maximum cost is reserved"
        turn.cancel()
        await asyncio.wait({turn})
        assert 0 < await _spent(core) < 0.01


async def test_a_suspended_process_does_not_take_over_its_own_turn(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["slow and sure"], pause_s=0.05)) as core:
        await core.say("hello")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        await core.later(3600)
        (turn_id,) = await core.lifecycle.recover()
        assert await core.agent.resume(turn_id, core.options()) is None
        ended = await turn
        assert ended is not None
        assert ended.text == "slow and sure"
        assert len(core.model.requests) == 1


# --- Notices to memory providers ---


async def test_a_turn_is_announced_to_providers_when_it_starts_and_after_its_commit(tmp_path: Path) -> None:
    recorder = NoticeRecorder()
    async with AgentFixture(tmp_path, FakeModel(["well met"]), recorder) as core:
        ended = await core.ask("hello")
        await until(lambda: len(recorder.calls) == 2)
    ref = ended.committed.ref
    assert sorted(recorder.calls) == [("on_turn_start", "hello", ref), ("queue_prefetch", "hello", ref)]


async def test_a_provider_that_hangs_in_a_notice_delays_no_answer(tmp_path: Path) -> None:
    with Gate() as gate:
        async with AgentFixture(tmp_path, FakeModel(["one", "two"]), NoticeRecorder(before=gate.wait)) as core:
            begun = asyncio.get_running_loop().time()
            assert [(await core.ask(text)).text for text in ("first", "second")] == ["one", "two"]
            assert asyncio.get_running_loop().time() - begun < 4


@pytest.mark.parametrize("kind", [SessionKind.CRON, SessionKind.SUBAGENT])
async def test_turns_of_synthetic_sessions_are_not_announced(tmp_path: Path, kind: SessionKind) -> None:
    recorder = NoticeRecorder()
    async with AgentFixture(tmp_path, FakeModel(["done", "well met"]), recorder) as core:
        await core.cross(CLI, New(kind=kind))
        assert (await core.ask("count")).text == "done"
        ended = await core.ask("hello", TELEGRAM)
        await until(lambda: len(recorder.calls) == 2)
    assert {ref for _, _, ref in recorder.calls} == {ended.committed.ref}


async def test_without_recall_no_prefetch_is_queued(tmp_path: Path) -> None:
    recorder = NoticeRecorder()
    async with AgentFixture(tmp_path, None, recorder, turn_limits=TurnLimits(recall_s=0.0)) as core:
        await core.ask("hello")
        await until(lambda: recorder.calls)
    assert [hook for hook, _, _ in recorder.calls] == ["on_turn_start"]


async def test_a_message_is_answered_streamed_and_stored(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["well met"])) as core:
        ended = await core.ask("hello")
        assert (ended.text, ended.problem, ended.committed.status) == ("well met", "", TurnStatus.DONE)
        assert [e.text for e in core.heard if isinstance(e, TextWritten)] == ["well", " met"]
        assert isinstance(core.heard[0], TurnBegan)
        assert core.heard[-1] == ended
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert [(m.role, m.content) for m in turn.messages] == [(Role.USER, "hello"), (Role.ASSISTANT, "well met")]
