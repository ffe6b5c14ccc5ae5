"""One turn, from the message to the commit, and everything that can get in its way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.notices import NoticeRecorder
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, Gate, opened, until

from everthread.agent.events import Retrying, Steered, TextWritten, ToolBegan, TurnBegan, TurnEnded
from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer, newest_that_fit
from everthread.agent.tools.runner import Toolbox
from everthread.agent.transcript import INTERRUPTED, OUTCOME_UNKNOWN, STOPPED
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.agent.turn_state import FENCE_MAX
from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.errors import (
    BadKey,
    Busy,
    DiskFull,
    ModelRefused,
    ModelUnauthorized,
    ModelUnavailable,
    StoreBusy,
    ToolFailed,
)
from everthread.domain.model import (
    InboxRow,
    InboxState,
    Role,
    SessionKey,
    SessionKind,
    SessionRef,
    ToolCall,
    TurnStatus,
)
from everthread.domain.spend import Price
from everthread.lifecycle import CommittedTurn, ForgetFact, ForgetSession, TurnClaim
from everthread.plugins import hookimpl
from everthread.ports.memory import RecallItem
from everthread.ports.model import Answer, Delta, Finish, Request, Traits, Usage
from everthread.ports.tools import ToolUse

LOOK = ToolCall("c1", "look", "{}")


# --- The plain case --------------------------------------------------------------------------------------------------


async def test_a_message_is_answered_streamed_and_stored(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["well met"])) as core:
        ended = await core.ask("hello")
        assert (ended.text, ended.problem, ended.committed.status) == ("well met", "", TurnStatus.DONE)
        assert [e.text for e in core.heard if isinstance(e, TextWritten)] == ["well", " met"]
        assert isinstance(core.heard[0], TurnBegan)
        assert core.heard[-1] == ended
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert [(m.role, m.content) for m in turn.messages] == [(Role.USER, "hello"), (Role.ASSISTANT, "well met")]


async def test_nothing_waits_nothing_runs(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path) as core:
        assert await core.agent.answer(CLI, core.options()) is None
        assert core.model.requests == []


async def test_the_model_sees_what_was_said_before(tmp_path: Path) -> None:
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


# --- Tools -----------------------------------------------------------------------------------------------------------


async def test_a_tool_is_run_and_its_result_is_sent_back(tmp_path: Path) -> None:
    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return f"a tree at {arguments['where']}"

    call = ToolCall("c1", "look", '{"where": "home"}')
    async with AgentFixture(tmp_path, FakeModel([call, "I see"]), tools=(tool("look", look),)) as core:
        ended = await core.ask("what is there?")
        assert ended.text == "I see"
        assert "a tree at home" in core.model.sent()
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert [m.role for m in turn.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


async def test_s21_every_tool_call_gets_the_ref_of_its_own_turn(tmp_path: Path) -> None:
    """Fifty conversations at once in one process: none is told of another's session."""
    seen: dict[str, list[SessionRef]] = {}

    async def whoami(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await asyncio.sleep(0)
        seen.setdefault(arguments["me"], []).append(use.ref)
        return use.ref.session_id

    def ask_twice(request: Any) -> object:
        me = request.tail[0].content
        if sum(m.role is Role.TOOL for m in request.tail) < 2:
            return ToolCall(f"c{len(request.tail)}", "whoami", f'{{"me": "{me}"}}')
        return request.tail[-1].content

    model = FakeModel([ask_twice], pause_s=0.001)
    keys = [TELEGRAM.__class__("main", "telegram", TELEGRAM.chat_type, str(n)) for n in range(50)]
    async with AgentFixture(tmp_path, model, tools=(tool("whoami", whoami),)) as core:
        ended = await asyncio.gather(*(core.ask(f"user{n}", key) for n, key in enumerate(keys)))
        for n, (key, end) in enumerate(zip(keys, ended, strict=True)):
            ref = end.committed.ref
            assert ref.key == key
            assert seen[f"user{n}"] == [ref, ref]
            assert end.text == ref.session_id


async def test_calls_that_are_safe_together_run_together_and_the_others_do_not(tmp_path: Path) -> None:
    running: list[str] = []
    most: dict[str, int] = {}

    def noting(name: str) -> Any:
        async def run(arguments: Mapping[str, Any], use: ToolUse) -> str:
            running.append(name)
            await asyncio.sleep(0.02)
            most[name] = max(most.get(name, 0), len(running))
            running.remove(name)
            return "ok"

        return run

    calls = [ToolCall(f"r{n}", "read", "{}") for n in range(3)] + [ToolCall(f"w{n}", "write", "{}") for n in range(3)]
    tools = (tool("read", noting("read"), parallel=True), tool("write", noting("write")))
    async with AgentFixture(tmp_path, FakeModel([calls, "done"]), tools=tools) as core:
        await core.ask("go")
        assert most == {"read": 3, "write": 1}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (ToolCall("c", "fly", "{}"), "there is no tool 'fly'"),
        (ToolCall("c", "look", "{oops"), "no JSON object"),
        (ToolCall("c", "look", "[1]"), "no JSON object"),
        (ToolCall("c", "look", "x" * 1_000_001), "at most 1000000"),
        (ToolCall("c", "slow", "{}"), "did not answer within 0.01 s"),
        (ToolCall("c", "broken", "{}"), "RuntimeError('no screws left')"),
        (ToolCall("c", "failing", "{}"), "Error: the door is locked"),
        (ToolCall("c", "dumb", "{}"), "answered with int, not text"),
        (ToolCall("c", "axe", "{}"), "not approved"),
    ],
    ids=["unknown", "bad json", "no object", "huge", "slow", "raises", "fails", "no text", "dangerous"],
)
async def test_the_model_is_told_what_went_wrong_with_a_tool(tmp_path: Path, call: ToolCall, told: str) -> None:
    async def slow(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await asyncio.sleep(5)
        return ""

    async def broken(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise RuntimeError("no screws left")

    async def failing(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise ToolFailed("the door is locked")

    async def dumb(arguments: Mapping[str, Any], use: ToolUse) -> Any:
        return 3

    tools = (
        tool("look", says_nothing),
        tool("slow", slow, timeout_s=0.01),
        tool("broken", broken),
        tool("failing", failing),
        tool("dumb", dumb),
        tool("axe", says_nothing, dangerous=True),
    )
    async with AgentFixture(tmp_path, FakeModel([call, "I see"]), tools=tools) as core:
        ended = await core.ask("go")
        assert (ended.text, ended.problem) == ("I see", "")
        assert told in core.model.sent()


async def test_a_dangerous_tool_runs_once_it_is_approved_or_allowed(tmp_path: Path) -> None:
    axe = tool("axe", says_nothing, dangerous=True)
    call = ToolCall("c", "axe", "{}")
    async with AgentFixture(tmp_path, FakeModel([call, "done"]), tools=(axe,)) as core:
        asked: list[ToolCall] = []

        async def approve(call: ToolCall, ref: SessionRef) -> bool:
            asked.append(call)
            return True

        core.approve = approve
        await core.ask("go")
        assert asked == [call]
        assert any(isinstance(event, ToolBegan) for event in core.heard)
    async with AgentFixture(tmp_path, FakeModel([call, "done"]), tools=(axe,), allowed=frozenset({"axe"})) as core:
        await core.ask("go")
        assert any(isinstance(event, ToolBegan) for event in core.heard)


async def test_a_long_result_is_shortened(tmp_path: Path) -> None:
    async def book(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "begin" + "x" * 1_000_000 + "end"

    async with AgentFixture(
        tmp_path, FakeModel([ToolCall("c", "book", "{}"), "ok"]), tools=(tool("book", book),)
    ) as core:
        await core.ask("read")
        sent = core.model.requests[-1].tail[2].content
        assert len(sent) < 101_000
        assert sent.startswith("begin")
        assert sent.endswith("end")


# --- Limits and failures ---------------------------------------------------------------------------------------------


async def test_a_turn_that_never_ends_is_ended(tmp_path: Path) -> None:
    limits = TurnLimits(iterations=3)
    async with AgentFixture(
        tmp_path, FakeModel([LOOK]), tools=(tool("look", says_nothing),), turn_limits=limits
    ) as core:
        ended = await core.ask("go")
        assert "3 steps" in ended.problem
        assert ended.committed.status is TurnStatus.INTERRUPTED
        core.model.lines = ["fresh again"]
        assert (await core.ask("still there?")).text == "fresh again"


async def test_a_turn_has_a_time_limit(tmp_path: Path) -> None:
    limits = TurnLimits(turn_s=1.0)
    async with AgentFixture(tmp_path, FakeModel(["a b c d e f g h"], pause_s=0.4), turn_limits=limits) as core:
        ended = await core.ask("go")
        assert "limit of a turn" in ended.problem
        assert ended.text.startswith("a")
        assert core.model.cut_off == 1


async def test_an_endpoint_that_stumbles_is_asked_again(tmp_path: Path) -> None:
    lines = [ModelUnavailable("busy", retry_after_s=7.0), ModelUnavailable("gone"), "here"]
    async with AgentFixture(tmp_path, FakeModel(list(lines))) as core:
        ended = await core.ask("hello?")
        assert (ended.text, ended.problem) == ("here", "")
        waits = [event.wait_s for event in core.heard if isinstance(event, Retrying)]
        assert waits == [7.0, 1.0]


async def test_words_of_an_answer_that_broke_off_do_not_stay(tmp_path: Path) -> None:
    model = FakeModel(["this will break off", ModelUnavailable("cut"), "whole"], broken_after=2)
    async with AgentFixture(tmp_path, model) as core:
        ended = await core.ask("hello?")
        assert ended.text == "whole"
        (turn,) = await core.turns(ended.committed.ref.session_id)
        assert turn.assistant_text == "whole"


async def test_another_model_stands_in(tmp_path: Path) -> None:
    first, second = FakeModel([ModelUnauthorized("no key")]), FakeModel(["I am second"])
    async with AgentFixture(tmp_path, first) as core:
        core.choices = [first.choice("fake/one"), second.choice("fake/two")]
        ended = await core.ask("hello")
        assert ended.text == "I am second"
        assert second.requests[0].head == second.head(_prompt_of(first)).replace(b'"one"', b'"two"')
        await core.ask("again")
        assert b"I am second" in second.requests[1].history


def _prompt_of(model: FakeModel) -> Any:
    import json

    from everthread.ports.model import Prompt

    name, system, _ = json.loads(model.requests[0].head)
    return Prompt(name, system)


async def test_when_no_model_answers_the_message_is_kept_and_the_chat_goes_on(tmp_path: Path) -> None:
    model = FakeModel([ModelUnauthorized("no key is set; set KEY"), "better now"])
    async with AgentFixture(tmp_path, model) as core:
        ended = await core.ask("hello")
        assert (ended.text, ended.problem) == ("", "no key is set; set KEY")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        assert (await core.ask("and now?")).text == "better now"
        assert "hello" in core.model.requests[-1].history.decode()
        assert INTERRUPTED in core.model.requests[-1].history.decode()


async def test_a_bug_in_a_client_ends_the_turn_and_not_the_conversation(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ZeroDivisionError("oops"), "fine"])) as core:
        ended = await core.ask("hello")
        assert "oops" in ended.problem
        assert (await core.ask("and now?")).text == "fine"


async def test_a_cut_answer_says_so(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["only the beg"], finish=Finish.LENGTH)) as core:
        ended = await core.ask("tell me")
        assert ended.committed.status is TurnStatus.DONE
        assert "cut at" in ended.problem


# --- Spend -----------------------------------------------------------------------------------------------------------


async def _spent(core: AgentFixture, owner: str = ME) -> float:
    return await core.store.read(lambda uow: uow.spend.total(owner, 0.0))


async def test_what_a_call_costs_is_settled_with_the_turn(tmp_path: Path) -> None:
    model = FakeModel([LOOK, "done"], usage=Usage(1000, 100, 400))
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0, 0.3))]
        await core.ask("go")
        assert await _spent(core) == pytest.approx(2 * (600 * 3 + 400 * 0.3 + 100 * 15) / 1e6)


async def test_a_limit_on_spending_is_hard(tmp_path: Path) -> None:
    model = FakeModel(["fine"], usage=Usage(1000, 1000))
    async with AgentFixture(tmp_path, model, spend_per_day=0.2) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        problems = [(await core.ask("go")).problem for _ in range(15)]
        assert problems[0] == ""
        assert "limit of $0.2" in problems[-1]
        assert await _spent(core) <= 0.2
        await core.later(86_500)
        assert (await core.ask("next day")).problem == ""


async def test_with_a_limit_a_model_without_a_price_is_not_asked(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, spend_per_day=1.0) as core:
        assert "no price for fake/one" in (await core.ask("go")).problem
        assert core.model.requests == []


async def test_a_call_that_was_cut_off_is_paid_for(tmp_path: Path) -> None:
    model = FakeModel(["a b c d e f"], pause_s=0.02)
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: any(isinstance(event, TextWritten) for event in core.heard))
        core.agent.stop((await core.at(CLI)).session_id)
        await turn
        assert await _spent(core) > 0


# --- Interrupting, steering, leaving ---------------------------------------------------------------------------------


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


async def test_a_tool_that_was_stopped_has_an_unknown_outcome(tmp_path: Path) -> None:
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


async def test_a_message_can_steer_a_running_turn(tmp_path: Path) -> None:
    going, steered = asyncio.Event(), asyncio.Event()

    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        going.set()
        await steered.wait()
        return "a tree"

    async with AgentFixture(tmp_path, FakeModel([LOOK, "left then"]), tools=(tool("look", look),)) as core:
        await core.say("which way?")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await going.wait()
        row = await core.say("rather left")
        assert core.agent.steer((await core.at(CLI)).session_id, row.id)
        steered.set()
        ended = await turn
        assert ended is not None
        assert Steered("rather left", row.id) in core.heard
        assert "rather left" in core.model.sent()
        (stored,) = await core.turns(ended.committed.ref.session_id)
        assert [m.content for m in stored.messages if m.role is Role.USER] == ["which way?", "rather left"]
        after = await core.store.read(lambda uow: uow.inbox.get(row.id))
        assert after is not None
        assert after.state is InboxState.DONE
        assert await core.agent.answer(CLI, core.options()) is None


async def test_a_message_that_came_too_late_to_steer_is_the_next_one(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["a b c", "to the left"], pause_s=0.01)) as core:
        await core.say("which way?")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: core.model.requests)
        row = await core.say("rather left")
        core.agent.steer((await core.at(CLI)).session_id, row.id)
        await turn
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"


async def test_a_message_that_would_be_taken_up_after_the_last_step_is_the_next_one(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"]), turn_limits=TurnLimits(iterations=1)) as core:

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        assert "1 steps" in ended.problem
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"
        first, second = await core.turns(ended.committed.ref.session_id)
        assert (first.user_text, second.user_text) == ("which way?", "rather left")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_message_that_comes_as_the_turn_is_stored_is_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async with AgentFixture(tmp_path, FakeModel(["straight on", "to the left"])) as core:
        commit = core.lifecycle.commit_turn
        steered: list[bool] = []

        async def steer(ref: SessionRef) -> None:
            row = await core.say("rather left")
            steered.append(core.agent.steer(ref.session_id, row.id))

        async def steer_and_commit(ticket: TurnClaim, *given: Any, **more: Any) -> CommittedTurn:
            if when == "before" and not steered:
                await steer(ticket.ref)
            committed = await commit(ticket, *given, **more)
            if when == "after" and not steered:
                await steer(ticket.ref)
            return committed

        monkeypatch.setattr(core.lifecycle, "commit_turn", steer_and_commit)
        assert (await core.ask("which way?")).text == "straight on"
        assert steered == [False], "nothing is running that could take it up"
        ended = await core.agent.answer(CLI, core.options())
        assert ended is not None
        assert ended.text == "to the left"
        assert [turn.user_text for turn in await core.turns(ended.committed.ref.session_id)] == [
            "which way?",
            "rather left",
        ]


@pytest.mark.parametrize("stops", ["before", "after"])
async def test_a_turn_that_is_stopped_as_it_takes_a_message_up_has_it_or_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"])) as core:
        steer = core.lifecycle.steer

        async def steer_and_stop(ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
            if stops == "before":
                core.agent.stop(ticket.ref.session_id)
                await asyncio.sleep(0)
            row = await steer(ticket, inbox_id)
            core.agent.stop(ticket.ref.session_id)
            return row

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        monkeypatch.setattr(core.lifecycle, "steer", steer_and_stop)
        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        monkeypatch.undo()
        following = await core.agent.answer(CLI, core.options())
        turns = await core.turns(ended.committed.ref.session_id)
        said = [m.content for turn in turns for m in turn.messages if m.role is Role.USER]
        assert said == ["which way?", "rather left"]
        assert (following is None) == (len(turns) == 1)


@pytest.mark.parametrize("slow", ["before", "after"])
async def test_a_message_that_is_taken_up_too_slowly_for_a_stop_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.05)
    async with AgentFixture(tmp_path, FakeModel([LOOK, "to the left"])) as core:
        steer = core.lifecycle.steer

        async def steer_slowly(ticket: TurnClaim, inbox_id: int) -> InboxRow | None:
            core.agent.stop(ticket.ref.session_id)
            if slow == "before":
                await asyncio.sleep(0.3)
            row = await steer(ticket, inbox_id)
            if slow == "after":
                await asyncio.sleep(0.3)
            return row

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            row = await core.say("rather left")
            assert core.agent.steer(use.ref.session_id, row.id)
            return "a tree"

        monkeypatch.setattr(core.lifecycle, "steer", steer_slowly)
        core.toolbox = Toolbox((tool("look", look),))
        ended = await core.ask("which way?")
        await asyncio.sleep(0.4)
        await core.agent.answer(CLI, core.options())
        turns = await core.turns(ended.committed.ref.session_id)
        said = [m.content for turn in turns for m in turn.messages if m.role is Role.USER]
        assert said == ["which way?", "rather left"]


async def test_a_turn_that_was_left_behind_ends_in_its_own_session(tmp_path: Path) -> None:
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


async def test_a_task_that_is_cancelled_leaves_its_turn_to_be_recovered(tmp_path: Path) -> None:
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


async def test_however_often_it_is_cancelled_a_turn_that_was_begun_meanwhile_is_given_back(
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


async def test_a_turn_whose_process_died_is_gone_on_with(tmp_path: Path) -> None:
    """A result that is there is used, and a tool that was only begun is neither run again nor taken for done."""
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


async def test_a_turn_that_somebody_else_took_over_is_let_go(tmp_path: Path) -> None:
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


async def test_a_provider_that_hangs_delays_an_answer_by_its_deadline_only(tmp_path: Path) -> None:
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


async def test_a_long_history_is_cut_to_what_the_model_can_read(tmp_path: Path) -> None:
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


# --- Prepared agents -------------------------------------------------------------------------------------------------


async def test_what_is_prepared_is_the_same_as_what_is_made_anew(tmp_path: Path) -> None:
    model = FakeModel([LOOK, "one", "two", "three"])
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        for text in ("first", "second", "third"):
            await core.ask(text)
    async with AgentFixture(tmp_path, FakeModel(["x"]), tools=(tool("look", says_nothing),)) as fresh:
        ref = (await fresh.store.read(lambda uow: uow.sessions.recent(owner=ME, limit=1)))[0]
        await fresh.cross(TELEGRAM, Resume(ref.id))
        await fresh.ask("fourth", TELEGRAM)
        whole = fresh.model.requests[0]
        assert whole.head == model.requests[-1].head
        assert whole.history.startswith(model.requests[-1].history)


async def test_a_prepared_agent_is_not_used_after_a_boundary(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        await core.ask("secret one")
        await core.ask("secret two")
        await core.cross(CLI, Rewind(1))
        await core.ask("what did I say?")
        assert "secret one" in core.model.sent()
        assert "secret two" not in core.model.sent()
        await core.cross(CLI, New())
        await core.ask("and now?")
        assert "secret" not in core.model.sent()


async def test_turns_of_another_process_are_seen(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as here:
        ended = await here.ask("from here")
        async with AgentFixture(tmp_path, FakeModel(["there"])) as there:
            await there.cross(TELEGRAM, Resume(ended.committed.ref.session_id))
            await there.ask("from there", TELEGRAM)
        await here.ask("again")
        assert "from there" in here.model.requests[-1].history.decode()


async def test_letting_a_prepared_agent_go_is_no_event(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with AgentFixture(tmp_path, FakeModel(["fine"]), diary) as core:
        ended = await core.ask("one")
        await core.settled()
        told = len(diary.book.effects)
        await core.later(7200)
        assert (await core.ask("two")).committed.ref.session_id == ended.committed.ref.session_id
        await core.settled()
        assert [call.hook for call in diary.book.effects[told:]] == ["sync_turn"]


async def test_prepared_agents_are_few_and_not_old(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        refs = [
            (await core.ask("one", key)).committed.ref
            for key in (CLI, TELEGRAM, SessionKey.parse("agent:main:cli:dm:2"))
        ]
        prompts = PromptBuilder(tmp_path, core.memory, core.clock, skills=str)
        few = Preparer(
            core.store, core.lifecycle, prompts, core.clock, output_tokens_max=1000, count_max=2, age_s_max=60.0
        )

        async def prepared(ref: SessionRef) -> object:
            return await few.prepare(ref, core.model.choice(), core.toolbox)

        first, second = await prepared(refs[0]), await prepared(refs[1])
        assert await prepared(refs[0]) is first
        await prepared(refs[2])
        # The one that was made first has gone; the others are still there.
        assert await prepared(refs[1]) is second
        assert await prepared(refs[0]) is not first
        kept = await prepared(refs[2])
        await core.later(59)
        assert await prepared(refs[2]) is kept
        await core.later(1)
        assert await prepared(refs[2]) is not kept


async def test_s23_a_branch_goes_on_with_the_same_prefix_and_history(tmp_path: Path) -> None:
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


async def test_another_model_or_another_tool_set_makes_a_new_prefix(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"]), tools=(tool("look", says_nothing),)) as core:
        ref = (await core.ask("one")).committed.ref

        async def number() -> int:
            prefix = await core.store.read(lambda uow: uow.turns.prefix(ref.session_id))
            assert prefix is not None
            return prefix.number

        assert await number() == 1
        await core.ask("two")
        assert await number() == 1
        core.choices = [core.model.choice("fake/two")]
        await core.ask("three")
        assert await number() == 2
        core.toolbox = type(core.toolbox)([tool("look", says_nothing), tool("listen", says_nothing)])
        await core.ask("four")
        assert await number() == 3
        assert "listen" in core.model.sent()


async def test_what_people_wrote_for_the_agent_is_in_its_prompt(tmp_path: Path) -> None:
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


async def test_an_overlong_file_is_a_clear_problem(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("rule " * 10_000)
    async with AgentFixture(tmp_path) as core:
        assert "AGENTS.md has more than" in (await core.ask("hello")).problem
        (tmp_path / "AGENTS.md").write_text("short")
        assert (await core.ask("hello")).problem == ""


async def test_the_endpoints_rules_are_kept_after_every_kind_of_turn(tmp_path: Path) -> None:
    """The fake refuses what a real endpoint would refuse; nothing a turn leaves behind may bring that about."""
    model = FakeModel([LOOK, ModelRefused("no"), [LOOK, LOOK], "two looks", "fine"])
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        problems = [(await core.ask(text)).problem for text in ("one", "two", "three")]
        assert problems == ["no", "", ""]


async def test_ended_is_the_last_that_is_heard(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "x"]), tools=(tool("look", says_nothing),)) as core:
        await core.ask("go")
        assert [type(event) for event in core.heard].count(TurnEnded) == 1
        assert isinstance(core.heard[-1], TurnEnded)


# --- What a hostile reader thought of --------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[100] * 20 + [600], [100] * 9 + [400, 400], [300], [2000, 100], [100, 2000]])
def test_history_is_cut_to_its_room_and_never_to_nothing(sizes: list[int]) -> None:
    pieces = [b"x" * size for size in sizes]
    kept = newest_that_fit(pieces, 1000)
    assert kept
    assert sum(len(piece) + 1 for piece in kept) <= 1000
    small = [piece for piece in pieces if len(piece) < 1000]
    assert list(kept) == small[len(small) - len(kept) :]


def test_the_start_of_a_cut_history_stays_the_same_whoever_cuts_it() -> None:
    pieces = [b"%03d" % number + b"x" * 96 for number in range(40)]
    starts = [newest_that_fit(pieces[:count], 1000)[0][:3] for count in range(11, 40)]
    assert len(set(starts)) <= 7


async def test_what_was_forgotten_elsewhere_is_not_sent_from_what_was_prepared(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        await core.ask("the gate code is 4711")
        note = await core.note("the gate code is 4711")
        await core.ask("and now?")
        assert "4711" in core.model.sent()
        async with AgentFixture(tmp_path) as elsewhere:
            await elsewhere.lifecycle.forget(ForgetFact(note.note_id), owner=ME)
        await core.ask("what is it?")
        assert "4711" not in core.model.sent()


async def test_a_branch_of_a_forgotten_conversation_with_tools_goes_on(tmp_path: Path) -> None:
    """The model refuses a result whose call is gone."""
    look = tool("look", says_nothing)
    async with AgentFixture(tmp_path, FakeModel([LOOK, "a tree", "still here"]), tools=(look,)) as core:
        parent = (await core.ask("what is there?")).committed.ref.session_id
        await core.cross(CLI, Branch())
        await core.lifecycle.forget(ForgetSession(parent), owner=ME)
        ended = await core.ask("are you there?")
        assert (ended.text, ended.problem) == ("still here", "")
        assert "tree" not in core.model.sent()


async def test_a_turn_that_can_not_be_written_is_there_to_be_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_store_that_is_busy_for_a_moment_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AgentFixture(tmp_path, FakeModel(["still here"])) as core:
        commit, refusals = core.lifecycle.commit_turn, [StoreBusy("busy")]

        async def busy(*args: Any, **more: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return await commit(*args, **more)

        monkeypatch.setattr(core.lifecycle, "commit_turn", busy)
        assert (await core.ask("hello")).text == "still here"


async def test_a_turn_that_never_comes_to_an_end_is_given_up(tmp_path: Path) -> None:
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


async def test_a_model_out_of_its_mind_gets_some_of_its_calls_run(tmp_path: Path) -> None:
    calls = [ToolCall(f"c{n}", "look", "{}") for n in range(100)]
    async with AgentFixture(tmp_path, FakeModel([calls, "enough"]), tools=(tool("look", says_nothing),)) as core:
        assert (await core.ask("go")).text == "enough"
        assert sum(isinstance(event, ToolBegan) for event in core.heard) == 32


async def test_a_tool_that_cancels_itself_has_a_result(tmp_path: Path) -> None:
    async def gone(arguments: Mapping[str, Any], use: ToolUse) -> str:
        raise asyncio.CancelledError

    async with AgentFixture(
        tmp_path, FakeModel([ToolCall("c", "gone", "{}"), "ok"]), tools=(tool("gone", gone),)
    ) as core:
        assert (await core.ask("go")).text == "ok"
        assert "cancelled by itself" in core.model.sent()


async def test_a_tool_that_will_not_be_stopped_does_not_keep_the_turn_going(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def stubborn(arguments: Mapping[str, Any], use: ToolUse) -> str:
        begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "I carry on"
        return ""

    model = FakeModel([ToolCall("c", "stubborn", "{}"), "never said"])
    async with AgentFixture(tmp_path, model, tools=(tool("stubborn", stubborn),)) as core:
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await begun.wait()
        core.agent.stop((await core.at(CLI)).session_id)
        ended = await turn
        assert ended is not None
        assert ended.problem == "stopped"
        assert len(model.requests) == 1


async def test_a_tool_that_goes_on_for_ever_is_left_behind_soon_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.1)
    begun, released = asyncio.Event(), asyncio.Event()

    async def deaf(arguments: Mapping[str, Any], use: ToolUse) -> str:
        begun.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return "at last"

    async with AgentFixture(tmp_path, FakeModel([LOOK, "never said"]), tools=(tool("look", deaf),)) as core:
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await begun.wait()
        core.agent.stop((await core.at(CLI)).session_id)
        try:
            ended = await asyncio.wait_for(asyncio.shield(turn), 3.0)
        finally:
            released.set()
        assert ended is not None
        assert ended.problem == "stopped"
        (stored,) = await core.turns(ended.committed.ref.session_id)
        assert stored.messages[-1].content == STOPPED


async def test_an_endpoint_that_does_not_say_what_it_used_is_paid_for_by_a_guess(tmp_path: Path) -> None:
    model = FakeModel(["fine"], usage=Usage())
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.ask("漢字" * 3000)
        assert await _spent(core) > 6000 * 3.0 / 1e6


async def test_s26_a_call_with_wrong_arguments_is_a_visible_error(tmp_path: Path) -> None:
    wrong: Any = str(CLI)
    async with AgentFixture(tmp_path) as core:
        with pytest.raises(BadKey):
            await core.agent.answer(wrong, core.options())
        core.choices = []
        ended = await core.ask("hello")
        assert "internal error" in ended.problem
        assert ended.committed.status is TurnStatus.INTERRUPTED


# --- What a hostile reader would try ---------------------------------------------------------------------------------


async def test_a_turn_can_be_stopped_from_the_moment_it_is_told_of(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["one two three"])) as core:

        def stop(event: object) -> None:
            if isinstance(event, TurnBegan):
                assert core.agent.stop(event.ref.session_id)

        await core.say("hello")
        ended = await core.agent.answer(CLI, TurnOptions(core.choices, stop))
        assert ended is not None
        assert (ended.text, ended.problem) == ("", "stopped")
        assert core.model.requests == []


@pytest.mark.parametrize("arguments", ['{"a":' * 100_000, '{"a": "\ud83d"}', "[" * 100_000])
async def test_arguments_that_nobody_can_read_are_the_models_own_problem(tmp_path: Path, arguments: str) -> None:
    model = FakeModel([ToolCall("c1", "look", arguments), "sorry"])
    async with AgentFixture(tmp_path, model, tools=(tool("look", says_nothing),)) as core:
        ended = await core.ask("look")
        assert (ended.text, ended.problem) == ("sorry", "")
        assert "no JSON object" in core.model.sent()


async def test_the_name_of_a_tool_that_is_not_there_is_repeated_in_short(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ToolCall("c1", "x" * 1_000_000, "{}"), "sorry"])) as core:
        ended = await core.ask("look")
        (turn,) = await core.turns(ended.committed.ref.session_id)
        [told] = [message.content for message in turn.messages if message.role is Role.TOOL]
        assert "there is no tool" in told
        assert len(told) < 500


async def _late(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise TimeoutError("the database took too long")


async def _exits(arguments: Mapping[str, Any], use: ToolUse) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(("run", "told"), [(_late, "the database took too long"), (_exits, "SystemExit(3)")])
async def test_what_a_tool_raises_is_told_as_it_is(tmp_path: Path, run: Any, told: str) -> None:
    async with AgentFixture(tmp_path, FakeModel([LOOK, "sorry"]), tools=(tool("look", run),)) as core:
        assert (await core.ask("look")).text == "sorry"
        assert told in core.model.sent()
        assert "did not answer within" not in core.model.sent()


async def test_a_bug_is_not_spelled_out_to_whoever_writes_from_elsewhere(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel([ZeroDivisionError("/home/me/key"), "fine"])) as core:
        await core.say("hello", TELEGRAM)
        ended = await core.agent.answer(TELEGRAM, TurnOptions(core.choices, outbox=True))
        assert ended is not None
        assert "/home/me/key" in ended.problem
        assert ended.committed.reply is not None
        assert "internal error" in ended.committed.reply.text
        assert "/home/me/key" not in ended.committed.reply.text


async def _reports(scene: Callable[[], Awaitable[None]]) -> list[str]:
    """What asyncio has to say about tasks whose end nobody has heard of: by itself it goes to the terminal."""
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report["message"]))
    await scene()
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)
    return reports


async def test_a_tool_that_was_left_behind_ends_unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everthread.agent.turn_outcome.STOP_S_MAX", 0.05)

    async def scene() -> None:
        ended = asyncio.Event()

        async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
            for _ in range(20):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)
            ended.set()
            return "at last"

        limits = TurnLimits(turn_s=0.05)
        async with AgentFixture(tmp_path, FakeModel([LOOK]), tools=(tool("look", look),), turn_limits=limits) as core:
            assert "limit of a turn" in (await core.ask("look")).problem
            await ended.wait()
            await asyncio.sleep(0.1)

    assert await _reports(scene) == []


class _SlowHooks:
    """A plugin that takes its time before each call of a model."""

    @hookimpl
    async def pre_model_call(self, ref: SessionRef, model: str) -> None:
        await asyncio.sleep(0.5)


async def _stopped(core: AgentFixture, when: Callable[[], object]) -> None:
    await core.say("go")
    turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
    await until(when)
    core.agent.stop((await core.at(CLI)).session_id)
    await turn


async def test_a_call_that_was_never_made_costs_nothing(tmp_path: Path) -> None:
    model = FakeModel(["fine"])
    async with AgentFixture(tmp_path, model, plugins=(_SlowHooks(),)) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        reserved: list[float] = []

        def is_reserved() -> bool:
            return bool(reserved) and reserved[-1] > 0

        async def look() -> None:
            while not is_reserved():
                reserved.append(await _spent(core))
                await asyncio.sleep(0.005)

        looking = asyncio.ensure_future(look())
        await _stopped(core, is_reserved)
        await looking
        assert model.requests == []
        assert await _spent(core) == 0.0


async def test_what_is_set_aside_as_a_turn_is_stopped_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FakeModel(["fine"])
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        reserve, reserved = core.lifecycle.reserve_spend, asyncio.Event()

        async def reserve_slowly(*given: Any, **more: Any) -> int:
            spend_id = await reserve(*given, **more)
            reserved.set()
            await asyncio.sleep(0.05)
            return spend_id

        monkeypatch.setattr(core.lifecycle, "reserve_spend", reserve_slowly)
        await _stopped(core, reserved.is_set)
        assert model.requests == []
        assert await _spent(core) == 0.0


async def test_reasoning_is_paid_for_even_if_no_answer_follows(tmp_path: Path) -> None:
    class Thinker(FakeModel):
        async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
            yield Delta(reasoning="hm " * 10_000)
            raise ModelRefused("no")

    model = Thinker()
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(0.0, 15.0))]
        assert (await core.ask("go")).problem == "no"
        assert await _spent(core) > 15.0 * 5_000 / 1e6


async def test_what_a_turn_has_cost_is_settled_though_it_is_left_to_be_recovered(tmp_path: Path) -> None:
    model = FakeModel(["a b c d e f"], pause_s=0.02)
    async with AgentFixture(tmp_path, model) as core:
        core.choices = [model.choice(price=Price(3.0, 15.0))]
        await core.say("go")
        turn = asyncio.ensure_future(core.agent.answer(CLI, core.options()))
        await until(lambda: any(isinstance(event, TextWritten) for event in core.heard))
        assert await _spent(core) > 0.1, "the most that it can be"
        turn.cancel()
        await asyncio.wait({turn})
        assert 0 < await _spent(core) < 0.01


async def test_a_process_that_was_suspended_does_not_take_over_its_own_turn(tmp_path: Path) -> None:
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


async def test_a_provider_that_hangs_at_a_notice_delays_no_answer(tmp_path: Path) -> None:
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
