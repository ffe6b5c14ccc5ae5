"""The frozen prefix of a session's requests: numbered, stored with the session, copied by a branch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture, says_nothing, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary

from everthread.agent.prompt import PromptBuilder
from everthread.agent.prompt_cache import Preparer, select_newest
from everthread.bootstrap.runtime import Runtime
from everthread.config.schema import Settings
from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.model import (
    ChatType,
    Prefix,
    SessionKey,
    SessionRef,
    ToolCall,
)
from everthread.lifecycle import ForgetFact

KEY = SessionKey("main", "cli", ChatType.DM, "1")


async def prefix_of(runtime: Runtime, ref: SessionRef | None) -> Prefix | None:
    assert ref is not None
    return await runtime.store.read(lambda uow: uow.turns.prefix(ref.session_id))


def test_a_branch_keeps_its_parents_prefix_and_a_new_session_does_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with Runtime(Settings(tmp_path)) as runtime:
            first = (await runtime.lifecycle.cross(KEY, New(), owner="me")).ref
            assert first is not None
            await runtime.lifecycle.put_prefix(first, b"old rules", 0)
            stored = await runtime.lifecycle.put_prefix(first, b"rules \x00 and tools", 0)
            assert stored.number == 2
            branch = (await runtime.lifecycle.cross(KEY, Branch(), owner="me")).ref
            copied = await prefix_of(runtime, branch)
            assert copied is not None
            assert copied.content == b"rules \x00 and tools"
            fresh = (await runtime.lifecycle.cross(KEY, New(), owner="me")).ref
            assert await prefix_of(runtime, fresh) is None

    asyncio.run(story())


LOOK = ToolCall("c1", "look", "{}")


async def test_a_cached_prefix_equals_a_rebuilt_one(tmp_path: Path) -> None:
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
        async with AgentFixture(tmp_path, FakeModel(["there"])) as fixture:
            await fixture.cross(TELEGRAM, Resume(ended.committed.ref.session_id))
            await fixture.ask("from there", TELEGRAM)
        await here.ask("again")
        assert "from there" in here.model.requests[-1].history.decode()


async def test_evicting_a_prepared_agent_notifies_no_provider(tmp_path: Path) -> None:
    diary = AsyncDiary()
    async with AgentFixture(tmp_path, FakeModel(["fine"]), diary) as core:
        ended = await core.ask("one")
        await core.settled()
        told = len(diary.book.effects)
        await core.later(7200)
        assert (await core.ask("two")).committed.ref.session_id == ended.committed.ref.session_id
        await core.settled()
        assert [call.hook for call in diary.book.effects[told:]] == ["sync_turn"]


async def test_prepared_agents_are_limited_in_number_and_age(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        refs = [
            (await core.ask("one", key)).committed.ref
            for key in (CLI, TELEGRAM, SessionKey.parse("agent:main:cli:dm:2"))
        ]
        prompts = PromptBuilder(tmp_path, core.memory, core.clock)
        few = Preparer(
            core.store, core.lifecycle, prompts, core.clock, output_tokens_max=1000, count_max=2, age_s_max=60.0
        )

        async def prepared(ref: SessionRef) -> object:
            return await few.prepare(ref, core.model.choice(), core.tools)

        first, second = await prepared(refs[0]), await prepared(refs[1])
        assert await prepared(refs[0]) is first
        await prepared(refs[2])
        # The oldest entry was evicted; the others are cached.
        assert await prepared(refs[1]) is second
        assert await prepared(refs[0]) is not first
        kept = await prepared(refs[2])
        await core.later(59)
        assert await prepared(refs[2]) is kept
        await core.later(1)
        assert await prepared(refs[2]) is not kept


async def test_another_model_or_tool_set_creates_a_new_prefix(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("sizes", [[100] * 20 + [600], [100] * 9 + [400, 400], [300], [2000, 100], [100, 2000]])
def test_history_is_cut_to_the_limit_and_never_to_nothing(sizes: list[int]) -> None:
    pieces = [b"x" * size for size in sizes]
    kept = select_newest(pieces, 1000)
    assert kept
    assert sum(len(piece) + 1 for piece in kept) <= 1000
    small = [piece for piece in pieces if len(piece) < 1000]
    assert list(kept) == small[len(small) - len(kept) :]


def test_the_start_of_a_cut_history_changes_rarely() -> None:
    pieces = [b"%03d" % number + b"x" * 96 for number in range(40)]
    starts = [select_newest(pieces[:count], 1000)[0][:3] for count in range(11, 40)]
    assert len(set(starts)) <= 7


async def test_a_fact_forgotten_by_another_process_is_not_sent_from_the_cache(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path, FakeModel(["fine"])) as core:
        await core.ask("the gate code is 4711")
        note = await core.note("the gate code is 4711")
        await core.ask("and now?")
        assert "4711" in core.model.sent()
        async with AgentFixture(tmp_path) as elsewhere:
            await elsewhere.lifecycle.forget(ForgetFact(note.note_id), owner=ME)
        await core.ask("what is it?")
        assert "4711" not in core.model.sent()


class ForgettingProvider(AsyncDiary):
    """Memory provider during whose call, while a prompt is being built, another process forgets a fact."""

    def __init__(self) -> None:
        super().__init__()
        self.forget_once: Callable[[], Awaitable[object]] | None = None
        self.asked = 0

    async def system_prompt_block(self, **_: object) -> str:
        self.asked += 1
        if (forget := self.forget_once) is not None:
            self.forget_once = None
            await forget()
        return ""


async def test_a_fact_forgotten_while_a_prompt_is_built_is_in_no_prefix_and_no_branch(tmp_path: Path) -> None:
    provider = ForgettingProvider()
    async with AgentFixture(tmp_path, FakeModel(["fine"]), provider) as core, AgentFixture(tmp_path) as elsewhere:
        note = await core.note("the gate code is 4711")
        provider.forget_once = lambda: elsewhere.lifecycle.forget(ForgetFact(note.note_id), owner=ME)
        ref = (await core.ask("hello")).committed.ref
        assert provider.asked == 2, "the prompt must be built again"
        assert "4711" not in core.model.sent()
        branch = (await core.cross(CLI, Branch())).ref
        for each in (ref, branch):
            prefix = await core.store.read(lambda uow, each=each: uow.turns.prefix(each.session_id if each else ""))
            assert prefix is not None
            assert b"4711" not in prefix.content
