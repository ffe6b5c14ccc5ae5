"""Delegation: a task runs in its own session with its own budget and returns one result, also after failures."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from tests.agent_runtime import AgentFixture, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, AsyncDiary, until

from everthread.agent.delegation import Delegation, key_of, tools_of_children
from everthread.agent.events import ToolEnded
from everthread.agent.model_call import ModelCaller, ModelChoice
from everthread.agent.store_retry import StoreRetries
from everthread.agent.tools.runner import Toolbox, ToolRunner
from everthread.agent.tools.session_tools import SessionTools
from everthread.agent.turn import Agent
from everthread.agent.turn_options import TurnLimits, TurnOptions
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import ProviderSettings, Settings
from everthread.domain.boundary import New
from everthread.domain.events import EntryKind
from everthread.domain.model import (
    SUBAGENT_PLATFORM,
    Cause,
    Inbound,
    Session,
    SessionKey,
    SessionKind,
    SessionRef,
    ToolCall,
    ToolState,
    TurnStatus,
)
from everthread.domain.rights import OWNER_RIGHTS
from everthread.domain.spend import Price
from everthread.lifecycle import ForgetSession, TurnClaim
from everthread.ports.tools import Tool, ToolUse
from everthread.testing.model_server.replies import Say
from everthread.testing.model_server.server import ModelServer

DONE = "the answer is 42"


def hand_over(task: str, call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, "delegate", json.dumps({"task": task}))


class DelegationFixture(AgentFixture):
    """Agent that can delegate tasks to another model, `worker`."""

    def __init__(
        self,
        folder: Path,
        model: FakeModel,
        worker: FakeModel,
        *providers: object,
        tools: tuple[Tool, ...] = (),
        child_limits: TurnLimits | None = None,
        child_spend: float | None = None,
        price: Price | None = None,
        parallel: int = 3,
        **more: Any,
    ) -> None:
        super().__init__(folder, model, *providers, **more)
        self.worker = worker
        self.asked_for: list[str] = []
        self._given = tools
        self._child_limits = child_limits or TurnLimits(recall_s=0.0, section="delegation")
        self._child_spend = child_spend
        self._price = price
        self._parallel = parallel

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        asker = ModelCaller(self.lifecycle, self.clock, lambda: 0.5, self.hooks, spend_per_session=self._child_spend)
        runner = ToolRunner(self.lifecycle, self.hooks, self._allowed)
        self.children = Agent(
            self.lifecycle,
            self.memory,
            self.preparer,
            asker,
            runner,
            self._tools_of_children,
            self.clock,
            limits=self._child_limits,
        )
        delegation = Delegation(
            self.store,
            self.lifecycle,
            self.children,
            self._choices,
            self.agent.is_stopped,
            self.clock,
            parallel_max=self._parallel,
            retries=StoreRetries(self.store, self.clock, "delegation"),
        )
        self.toolbox = Toolbox((*self._given, delegation.tool()))
        return self

    async def _tools_of_children(self, ref: SessionRef) -> SessionTools:
        return SessionTools(tools_of_children(self.toolbox, self._allowed), OWNER_RIGHTS)

    def _choices(self, model: str) -> list[ModelChoice]:
        self.asked_for.append(model)
        return [self.worker.choice(price=self._price)]

    async def sessions(self, kind: SessionKind) -> list[Session]:
        found = await self.store.read(lambda uow: uow.sessions.recent(owner=ME, limit=99, kind=kind.value))
        return sorted(found, key=lambda session: session.id)

    async def child(self) -> Session:
        (found,) = await self.sessions(SessionKind.SUBAGENT)
        return found


def told(core: AgentFixture) -> list[str]:
    return [event.result for event in core.heard if isinstance(event, ToolEnded)]


async def test_a_task_runs_in_its_own_session_and_returns_the_tool_result(tmp_path: Path) -> None:
    model = FakeModel([hand_over("work it out"), "it is 42"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        ended = await core.ask("what is the answer?")
        assert (ended.text, ended.problem) == ("it is 42", "")
        child = await core.child()
        parent = ended.committed.ref.session_id
        assert (child.parent_id, child.cause, child.key.platform) == (parent, Cause.DELEGATION, "subagent")
        assert child.ended_at is not None, "the child session did not end"
        assert await core.lifecycle.current(child.key) is None
        assert [turn.user_text for turn in await core.turns(child.id)] == ["work it out"]
        assert [turn.user_text for turn in await core.turns(parent)] == ["what is the answer?"]
        assert told(core) == [f"{DONE}\n\n(done in session {child.id})"]
        assert "what is the answer?" not in core.worker.sent()
        assert "handed one task" in core.worker.sent()
        assert core.asked_for == ["fake/one"], "the task used another model than the conversation"
        assert DONE in core.model.sent()


async def test_providers_receive_one_delegation_and_no_entry_of_the_child(tmp_path: Path) -> None:
    diary = AsyncDiary()
    model = FakeModel([hand_over("work it out"), "it is 42"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE]), diary) as core:
        parent = (await core.ask("what is the answer?")).committed.ref.session_id
        await core.cross(CLI, New())
        await core.settled()
        child = await core.child()
        (call,) = diary.book.of("on_delegation")
        assert (call.session, call.text, call.more["result"]) == (parent, "work it out", DONE)
        assert call.more["child_session_id"] == child.id
        assert {call.session for call in diary.book.effects} & {child.id} == set()


async def test_a_delegated_turn_has_no_reply_in_the_outbox(tmp_path: Path) -> None:
    model = FakeModel([hand_over("work it out"), "it is 42"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        await core.ask("what is the answer?")
        child = await core.child()
        (turn,) = await core.turns(child.id)
        assert await core.store.read(lambda uow: uow.outbox.reply(turn.turn_id)) is None


async def test_tasks_of_one_answer_run_in_parallel_up_to_the_limit(tmp_path: Path) -> None:
    at_once: list[int] = []
    running = 0

    async def count(arguments: Mapping[str, Any], use: ToolUse) -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.05)
        running -= 1
        return "counted"

    calls = [hand_over(f"piece {n}", f"c{n}") for n in range(5)]
    worker = FakeModel()
    worker.lines = [lambda request: DONE if b'"tool"' in worker.encode(request.tail) else ToolCall("t", "count", "{}")]
    model = FakeModel([calls, "all done"])
    async with DelegationFixture(tmp_path, model, worker, tools=(tool("count", count),), parallel=2) as core:
        await core.ask("do all of it")
        assert (len(at_once), max(at_once)) == (5, 2)
        children = await core.sessions(SessionKind.SUBAGENT)
        assert len({child.id for child in children}) == 5
        assert all(DONE in result for result in told(core))


async def test_the_child_has_no_tools_that_ask_remember_or_delegate(tmp_path: Path) -> None:
    async def nothing(arguments: Mapping[str, Any], use: ToolUse) -> str:
        return "nothing"

    tools = (
        tool("look", nothing),
        tool("note", nothing, remembers=True),
        tool("wipe", nothing, dangerous=True),
        tool("send", nothing, dangerous=True),
    )
    model = FakeModel([hand_over("work it out"), "it is 42"])
    more = {"tools": tools, "allowed": frozenset({"send"})}
    async with DelegationFixture(tmp_path, model, FakeModel([DONE]), **more) as core:
        await core.ask("what is the answer?")
        _, _, offered = json.loads(core.worker.requests[0].head)
        assert [name for name, *_ in offered] == ["look", "send"]


@pytest.mark.parametrize(
    ("limits", "spend", "problem"),
    [
        (
            TurnLimits(iterations=2, recall_s=0.0, section="delegation"),
            None,
            "2 steps, the limit of a turn (delegation",
        ),
        (TurnLimits(turn_s=0.1, recall_s=0.0, section="delegation"), None, "0.1 s, the limit of a turn (delegation"),
        (None, 0.001, "the limit of $0.001 for a delegated task would be exceeded"),
    ],
    ids=["steps", "time", "money"],
)
async def test_a_task_has_a_budget_of_its_own(
    tmp_path: Path, limits: TurnLimits | None, spend: float | None, problem: str
) -> None:
    async def look(arguments: Mapping[str, Any], use: ToolUse) -> str:
        await asyncio.sleep(0.03)
        return "there is more"

    worker = FakeModel([ToolCall("t", "look", "{}")])
    model = FakeModel([hand_over("look for ever"), "it has no end"])
    core = DelegationFixture(
        tmp_path,
        model,
        worker,
        tools=(tool("look", look),),
        child_limits=limits,
        child_spend=spend,
        price=Price(input=1.0, output=1.0) if spend else None,
    )
    async with core:
        ended = await core.ask("find the end")
        assert (ended.text, ended.problem) == ("it has no end", "")
        (result,) = told(core)
        assert result.startswith("The task was not finished: ")
        assert problem in result


async def test_stopping_the_parent_stops_the_task_and_keeps_its_partial_result(tmp_path: Path) -> None:
    worker = FakeModel(["word by word by word by word"], pause_s=0.3)
    model = FakeModel([hand_over("take your time"), "never said"])
    async with DelegationFixture(tmp_path, model, worker) as core:
        asking = asyncio.ensure_future(core.ask("go"))
        await until(lambda: worker.requests)
        here = await core.lifecycle.current(CLI)
        assert here is not None
        assert core.agent.stop(here.session_id)
        ended = await asking
        assert ended.committed.status is TurnStatus.INTERRUPTED
        (turn,) = await core.turns((await core.child()).id)
        assert turn.status is TurnStatus.INTERRUPTED
        assert (await core.child()).ended_at is not None
        assert not await core.store.read_inline(lambda uow: uow.slots.delegated(here.session_id))
        assert worker.cut_off == 1


async def test_a_queued_task_is_not_started_after_the_parent_is_stopped(tmp_path: Path) -> None:
    worker = FakeModel(["word by word by word by word"], pause_s=0.3)
    model = FakeModel([[hand_over("one", "c1"), hand_over("two", "c2")], "never said"])
    async with DelegationFixture(tmp_path, model, worker, parallel=1) as core:
        asking = asyncio.ensure_future(core.ask("go"))
        await until(lambda: worker.requests)
        here = await core.lifecycle.current(CLI)
        assert here is not None
        core.agent.stop(here.session_id)
        await asking
        assert len(await core.sessions(SessionKind.SUBAGENT)) == 1
        assert await core.store.read_inline(lambda uow: uow.inbox.keys_waiting()) == ()


async def test_a_finished_task_is_recorded_even_if_the_parent_is_stopped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FakeModel([hand_over("work it out"), "never said"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        record = core.lifecycle.record_delegation

        async def stopped_meanwhile(ref: SessionRef, *given: Any) -> None:
            core.agent.stop(ref.session_id)
            await asyncio.sleep(0.05)
            await record(ref, *given)

        monkeypatch.setattr(core.lifecycle, "record_delegation", stopped_meanwhile)
        ended = await core.ask("what is the answer?")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        session_id = ended.committed.ref.session_id
        entries = await core.store.read(lambda uow: uow.log.of_kind(session_id, EntryKind.DELEGATION))
        assert [entry.detail and entry.detail["result"] for entry in entries] == [DONE]
        assert (await core.child()).ended_at is not None


async def test_a_task_stopped_while_it_starts_ends_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, worker = FakeModel([hand_over("work it out"), "never said"]), FakeModel([DONE])
    async with DelegationFixture(tmp_path, model, worker) as core:
        begin = core.lifecycle.begin_turn

        async def stopped_meanwhile(key: SessionKey) -> TurnClaim | None:
            ticket = await begin(key)
            if key != CLI:
                core.agent.stop((await core.at(CLI)).session_id)
                await asyncio.sleep(0.05)
            return ticket

        monkeypatch.setattr(core.lifecycle, "begin_turn", stopped_meanwhile)
        ended = await core.ask("what is the answer?")
        assert ended.committed.status is TurnStatus.INTERRUPTED
        child = await core.child()
        (turn,) = await core.turns(child.id)
        assert (turn.user_text, turn.status) == ("work it out", TurnStatus.INTERRUPTED)
        assert child.ended_at is not None
        assert await core.lifecycle.recover() == ()
        assert not worker.requests


async def _left(core: DelegationFixture, asking: asyncio.Future[Any]) -> str:
    """Cancel the turn as an immediate shutdown does; return the id of the turn left behind."""
    asking.cancel()
    await asyncio.wait({asking})
    (turn_id,) = await core.lifecycle.recover()
    return turn_id


async def test_after_a_shutdown_the_next_process_resumes_parent_and_child(tmp_path: Path) -> None:
    worker = FakeModel(["slow " * 50], pause_s=0.3)
    model = FakeModel([hand_over("work it out"), "never said"])
    async with DelegationFixture(tmp_path, model, worker) as core:
        asking = asyncio.ensure_future(core.ask("what is the answer?"))
        await until(lambda: worker.requests)
        turn_id = await _left(core, asking)

    model, worker = FakeModel(["it is 42"]), FakeModel([DONE])
    async with DelegationFixture(tmp_path, model, worker) as core:
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert (ended.text, len(worker.requests)) == ("it is 42", 1)
        assert DONE in model.sent()
        (turn,) = await core.turns((await core.child()).id)
        assert (turn.status, turn.assistant_text) == (TurnStatus.DONE, DONE)
        assert await core.lifecycle.recover() == ()


async def test_a_task_finished_before_a_crash_is_not_repeated(tmp_path: Path) -> None:
    """The process dies after the commit of the child and before its result is stored for the parent."""
    diary = AsyncDiary()
    model = FakeModel([hand_over("work it out"), "never said"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE]), diary) as core:
        done = asyncio.Event()

        async def die(*args: Any) -> None:
            done.set()
            await asyncio.Event().wait()

        core.lifecycle.finish_tool = die  # type: ignore[method-assign]
        asking = asyncio.ensure_future(core.ask("what is the answer?"))
        await done.wait()
        turn_id = await _left(core, asking)

    model, worker = FakeModel(["it is 42"]), FakeModel(["something else"])
    async with DelegationFixture(tmp_path, model, worker, diary) as core:
        assert (await core.child()).ended_at is not None
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert worker.requests == []
        assert DONE in model.sent()
        await core.settled()
        assert len(diary.book.of("on_delegation")) == 1


async def test_a_stored_result_is_reused(tmp_path: Path) -> None:
    model = FakeModel([hand_over("work it out"), "slow " * 50], pause_s=0.3)
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        asking = asyncio.ensure_future(core.ask("what is the answer?"))
        await until(lambda: len(model.requests) == 2)
        turn_id = await _left(core, asking)
        (row,) = await core.store.read_inline(lambda uow: uow.slots.tools(turn_id))
        assert row.state is ToolState.DONE

    model, worker = FakeModel(["it is 42"]), FakeModel(["something else"])
    async with DelegationFixture(tmp_path, model, worker) as core:
        ended = await core.agent.resume(turn_id, core.options())
        assert ended is not None
        assert (ended.text, worker.requests) == ("it is 42", [])
        assert DONE in model.sent()


async def test_a_model_failure_in_the_child_is_reported_to_the_parent(tmp_path: Path) -> None:
    model = FakeModel([hand_over("work it out"), "I could not"])
    async with DelegationFixture(tmp_path, model, FakeModel([RuntimeError("a bug")])) as core:
        assert (await core.ask("go")).text == "I could not"
        (result,) = told(core)
        assert "was not finished" in result


@pytest.mark.parametrize(("arguments", "said"), [({"task": "  "}, "is empty"), ({}, "`task` (string)")])
async def test_an_invalid_call_opens_no_session(tmp_path: Path, arguments: dict[str, str], said: str) -> None:
    model = FakeModel([ToolCall("c1", "delegate", json.dumps(arguments)), "sorry"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        await core.ask("go")
        assert said in told(core)[0]
        assert await core.sessions(SessionKind.SUBAGENT) == []


async def test_every_call_id_gives_a_valid_unique_session_key(tmp_path: Path) -> None:
    async with DelegationFixture(tmp_path, FakeModel(), FakeModel()) as core:
        ref = (await core.ask("hello")).committed.ref
        keys = {str(key_of(ToolUse(ref, "turn", call_id))) for call_id in ("a", "b:%", "\ud800", "x" * 10_000)}
        assert len(keys) == 4
        assert all(key.startswith("agent:main:subagent:dm:turn-") and len(key) < 100 for key in keys)


# --- With the whole runtime ------------------------------------------------------------------------------------------


async def test_after_a_kill_the_next_process_resumes_the_turn_and_its_tasks(tmp_path: Path) -> None:
    """A real process is killed while two tasks run, after one of them has finished."""
    working: list[str] = []
    killed = False

    def script(request: Any) -> Say:
        said = str(request)
        if "handed one task" in said:
            piece = "first" if "the first piece" in said else "second"
            working.append(piece)
            return Say(f"the {piece} is green") if killed or piece == "first" else Say("never", delay_s=60.0)
        if "is green" in said:
            return Say("both are green")
        pieces = (hand_over("look at the first piece", "c1"), hand_over("look at the second piece", "c2"))
        return Say("", pieces)

    async with ModelServer(script) as server:
        providers = {"stub": ProviderSettings("openai_compat", server.base_url)}
        (tmp_path / "config.toml").write_text(
            f'model = "stub/one"\n[providers.stub]\nbase_url = "{server.base_url}"\n', encoding="utf-8"
        )
        command = (sys.executable, "-m", "everthread", "--home", str(tmp_path), "-p", "what about the pieces?")
        process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)

        async def first_is_done() -> bool:
            async with Runtime(Settings(tmp_path, providers=providers)) as looking:
                found = await looking.store.read(lambda uow: uow.sessions.recent(owner=ME, limit=9, kind="subagent"))
                return sorted(session.last_turn for session in found) == [0, 1]

        await until(lambda: len(working) == 2)
        for _ in range(200):
            if await first_is_done():
                break
            await asyncio.sleep(0.05)
        process.kill()
        await process.wait()
        killed = True

        async with Runtime(Settings(tmp_path, model="stub/one", providers=providers)) as runtime:
            await runtime.ready()
            (turn_id,) = await runtime.lifecycle.recover()
            ended = await runtime.agent.resume(turn_id, TurnOptions(runtime.choices()))
            assert ended is not None
            assert (ended.text, ended.problem) == ("both are green", "")
            assert sorted(working) == ["first", "second", "second"]
            found = await runtime.store.read(lambda uow: uow.sessions.recent(owner=ME, limit=9, kind="subagent"))
            assert [session.last_turn for session in found] == [1, 1]
            entries = await runtime.store.read(
                lambda uow: uow.log.of_kind(ended.committed.ref.session_id, EntryKind.DELEGATION)
            )
            assert sorted(str(entry.detail and entry.detail["result"]) for entry in entries) == [
                "the first is green",
                "the second is green",
            ]


async def test_a_task_forgotten_before_its_start_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FakeModel([hand_over("work it out"), "never mind"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        cross = core.lifecycle.cross

        async def forgotten_right_after(*given: Any, **more: Any) -> Any:
            crossing = await cross(*given, **more)
            if isinstance(given[1], New):
                await core.lifecycle.forget(ForgetSession(given[1].parent), owner=ME)
            return crossing

        monkeypatch.setattr(core.lifecycle, "cross", forgotten_right_after)
        await core.say("what is the answer?")
        await core.agent.answer(CLI, core.options())
        assert core.worker.requests == []
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()


@pytest.mark.parametrize("what", ["parent", "child"])
async def test_a_task_forgotten_before_it_is_stored_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    model = FakeModel([hand_over("work it out"), "never mind"])
    async with DelegationFixture(tmp_path, model, FakeModel([DONE])) as core:
        accept = core.lifecycle.accept

        async def forgotten_right_before(inbound: Inbound, **more: Any) -> Any:
            if inbound.key.platform == SUBAGENT_PLATFORM:
                child = await core.child()
                await core.lifecycle.forget(
                    ForgetSession(child.id if what == "child" else child.parent_id or ""), owner=ME
                )
            return await accept(inbound, **more)

        monkeypatch.setattr(core.lifecycle, "accept", forgotten_right_before)
        await core.say("what is the answer?")
        await core.agent.answer(CLI, core.options())
        assert core.worker.requests == []
        assert await core.store.read(lambda uow: uow.inbox.keys_waiting()) == ()
        assert len(await core.sessions(SessionKind.SUBAGENT)) == 1
