"""Forget a fact after it was read and before the text made from it is written. Nothing of it may be stored.

Prompts are in tests/unit/agent/test_prompt_cache.py, reviews in tests/unit/agent/test_review.py, summaries in the
simulator.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.agent_runtime import AgentFixture, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, CoreFixture, MovableClock, until

from everthread.agent.skills.folders import SkillFolders
from everthread.agent.skills.format import SkillText
from everthread.agent.tools.memory import memory_tool
from everthread.agent.tools.skills import skill_write
from everthread.bootstrap.runtime import Runtime
from everthread.config.settings import Settings
from everthread.domain.errors import Outdated
from everthread.domain.media import Media
from everthread.domain.model import Inbound, Message, NoteAction, NoteTarget, Reply, ReplyState, Role, ToolCall
from everthread.domain.rights import OWNER_RIGHTS
from everthread.domain.schedule import Occurrence, OccurrenceState, Target, TargetKind
from everthread.gateway.approvals import _put_question  # pyright: ignore[reportPrivateUsage]
from everthread.gateway.attachments import AttachmentFetcher, AttachmentQueue
from everthread.lifecycle import CommittedTurn, ForgetFact, NoteChange
from everthread.lifecycle.home_files import HomeFiles
from everthread.lifecycle.schedules import NewSchedule, OccurrenceResult, ScheduleService
from everthread.log_erasure import LineFilter
from everthread.memory import note_files
from everthread.memory.note_files import CHARS_MAX
from everthread.ports.model import Answer, Delta, Request
from everthread.ports.platform import Capabilities, Platform
from everthread.ports.tools import ToolUse
from everthread.store.compression_pauses import CompressionPause
from everthread.store.incidents import Incident

FACT = "the gate code is 4711"


async def forget(core: CoreFixture) -> None:
    """Forget the fact, which must be noted."""
    note = await core.note(FACT)
    await core.lifecycle.forget(ForgetFact(note.note_id), owner=ME)


async def places(core: CoreFixture) -> tuple[str, ...]:
    """Return the columns that contain the fact."""
    return await core.store.read(lambda uow: uow.erasure.scrubber.find(FACT, ME))


async def answer(core: AgentFixture, text: str) -> CommittedTurn:
    """Answer a message of a platform, whose reply is stored in the outbox."""
    await core.say(text)
    ended = await core.agent.answer(CLI, replace(core.options(), outbox=True))
    assert ended is not None
    return ended.committed


class ForgettingModel(FakeModel):
    """Model during whose first answer a fact is forgotten."""

    before: Callable[[], Awaitable[None]] | None = None

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        if (before := self.before) is not None:
            self.before = None
            await before()
        async for each in super().stream(request):
            yield each


def call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(f"c-{name}", name, json.dumps(arguments))


async def test_a_message_is_answered_without_a_fact_that_is_forgotten_meanwhile(tmp_path: Path) -> None:
    model = ForgettingModel([f"Noted: {FACT}."])
    async with AgentFixture(tmp_path, model) as core:
        model.before = lambda: forget(core)
        committed = await answer(core, f"remember that {FACT}")
        assert committed.reply is not None
        assert committed.reply.text == "Noted: [forgotten]."
        [turn] = await core.turns(committed.ref.session_id)
        assert (turn.user_text, turn.assistant_text) == ("remember that [forgotten]", "Noted: [forgotten].")
        assert await places(core) == ()
        await core.ask("and now?")
        assert "4711" not in model.sent()


async def test_other_turns_keep_their_words(tmp_path: Path) -> None:
    """Forgetting erases what was said, not what is said afterwards."""
    async with AgentFixture(tmp_path, FakeModel([f"Yes, {FACT}."])) as core:
        await forget(core)
        committed = await answer(core, f"I tell you again: {FACT}")
        assert committed.reply is not None
        assert committed.reply.text == f"Yes, {FACT}."


async def test_a_turn_that_another_process_resumes_forgets_too(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(CLI, ME, f"remember that {FACT}"))
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        await core.lifecycle.start_tool(claim, "c1", "look", "{}")
        await forget(core)
        await core.lifecycle.finish_tool(claim, "c1", f"found: {FACT}")
        await core.lifecycle.draft_reply(claim, f"It says {FACT}")
        assert await places(core) == ()
        await core.store.write(lambda uow: uow.leases.end_process(core.holder))
        async with CoreFixture(tmp_path) as other:
            resumed = await other.lifecycle.resume_turn(claim.turn_id)
            assert resumed is not None
            assert [row.result for row in resumed.tools] == ["found: [forgotten]"]
            await other.lifecycle.commit_turn(resumed, [Message(Role.ASSISTANT, FACT)], FACT)
            assert await places(other) == ()


async def test_a_tool_does_not_get_a_fact_that_was_forgotten_before_it_began(tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []

    async def write(arguments: Mapping[str, Any], use: ToolUse) -> str:
        told.append(arguments)
        return "ok"

    model = ForgettingModel([call("write", text=f"so {FACT}"), "done"])
    async with AgentFixture(tmp_path, model, tools=(tool("write", write),)) as core:
        model.before = lambda: forget(core)
        await core.ask("write it down")
        assert told == [{"text": "so [forgotten]"}]


async def test_a_running_turn_writes_no_note_after_something_was_forgotten(tmp_path: Path) -> None:
    model = ForgettingModel([call("memory", action="add", target="user", content="the code was 47 and 11"), "done"])
    async with AgentFixture(tmp_path, model) as core:
        model.before = lambda: forget(core)
        core.toolbox = type(core.toolbox)([memory_tool(core.lifecycle.write_note, core.store, CHARS_MAX)])
        await core.ask("note it in your words")
        assert "something was forgotten while this turn ran" in model.sent()
        assert await core.store.read(lambda uow: [n.content for n in uow.notes.of_owner(ME)]) == ["[forgotten]"]


async def test_a_title_made_before_a_fact_was_forgotten_is_dropped(tmp_path: Path) -> None:
    names = ForgettingModel([f"About {FACT}"])
    async with AgentFixture(tmp_path, FakeModel(["fine"]), names=names.choice) as core:
        names.before = lambda: forget(core)
        session_id = (await core.ask(f"hello, {FACT}")).committed.ref.session_id
        await until(lambda: not core.titler.busy)
        assert len(names.requests) == 1
        assert (await core.session(session_id)).title is None
        await core.ask("again")
        await until(lambda: not core.titler.busy)
        assert (await core.session(session_id)).title == f"About {FACT}", "what is said later may be named"


async def test_a_skill_is_not_written_once_something_was_forgotten(tmp_path: Path) -> None:
    async with AgentFixture(tmp_path) as core:
        folders = SkillFolders(tmp_path / "skills")
        await core.lifecycle.accept(Inbound(CLI, ME, "hello"))
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        write = skill_write(folders, lambda change: None, lambda use: core.lifecycle.check_turn(use.turn_id))
        use = ToolUse(claim.ref, claim.turn_id, "c1", OWNER_RIGHTS)
        arguments = {"name": "gate", "description": "Opens it.", "body": FACT}
        await write.run(arguments, use)
        assert folders.get("gate").skill.name == "gate"
        await forget(core)
        with pytest.raises(Outdated):
            await write.run({**arguments, "name": "gate-2"}, use)
        assert not (tmp_path / "skills" / "gate-2").exists()


async def test_forgetting_waits_for_a_skill_that_is_being_written(tmp_path: Path) -> None:
    """A skill that passed the check before the fact was forgotten is erased after it was written."""
    folders = SkillFolders(tmp_path / "skills")
    files = HomeFiles(tmp_path, ME)
    checked, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def check() -> None:
        loop.call_soon_threadsafe(checked.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    writing = asyncio.create_task(
        asyncio.to_thread(lambda: folders.write(SkillText("gate", "Opens it.", FACT), check=check))
    )
    await checked.wait()
    erasing = asyncio.create_task(asyncio.to_thread(files.erase, ME, [FACT], LineFilter(owner=ME)))
    await asyncio.sleep(0.05)
    assert not erasing.done()
    go_on.set()
    await writing
    assert await erasing == []
    assert files.find(FACT) == ()
    assert folders.text(folders.get("gate")).endswith("[forgotten]\n")


class SlowPlatform:
    """Platform that serves downloads, during which a fact is forgotten."""

    name = "telegram"
    capabilities = Capabilities(4096, fetches=True)

    def __init__(self, core: CoreFixture) -> None:
        self.core = core

    async def fetch(self, media: Media, bytes_max: int) -> bytes:
        await forget(self.core)
        return b"a picture"


async def test_a_message_whose_files_are_fetched_loses_a_fact_for_good(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        platform = cast(Platform, SlowPlatform(core))
        fetcher = AttachmentFetcher({"telegram": platform}, tmp_path / "media", None, MovableClock())
        queue = AttachmentQueue(core.store, core.clock, fetcher, cast(Any, None))
        media = Media("image", "gate.png", handle="h", path="telegram/1-0-gate.png")
        row, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, f"see: {FACT}", media=(media,)))
        await queue.wait(row)
        stored = await core.store.read(lambda uow: uow.inbox.get(row.id))
        assert stored is not None
        assert stored.inbound.text.startswith("see: [forgotten]")
        assert "gate.png" in stored.inbound.text
        assert await places(core) == ()


async def test_the_answer_of_a_scheduled_task_is_delivered_without_a_forgotten_fact(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        service = ScheduleService(core.store, core.clock, iter(map(str, range(9))).__next__)
        target = Target(TargetKind.CHAT, str(TELEGRAM))
        schedule = await service.add(NewSchedule(ME, "every 1h", "UTC", "say it", target=target))
        row, _ = await core.lifecycle.accept(Inbound(CLI, ME, "say it"))
        claim = await core.lifecycle.begin_turn(CLI)
        assert claim is not None
        time = Occurrence(schedule.id, 1.0, ME, OccurrenceState.RUNNING, inbox_id=row.id)
        await core.store.write(lambda uow: uow.schedules.add_occurrence(time))
        await core.lifecycle.commit_turn(claim, [Message(Role.ASSISTANT, f"so {FACT}")], None)
        await forget(core)
        result = OccurrenceResult(f"so {FACT}", "", claim.ref.session_id, claim.turn_id)
        ended = await service.end(time, result)
        assert ended is not None
        assert ended[1] is not None
        assert ended[1].text == "so [forgotten]"
        assert await places(core) == ()


async def test_the_problem_of_a_scheduled_task_is_stored_without_a_forgotten_fact(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        service = ScheduleService(core.store, core.clock, core.new_id)
        chat = Target(TargetKind.CHAT, str(TELEGRAM))
        schedule = await service.add(NewSchedule(ME, "every 1h", "UTC", "say it", target=chat))
        time = Occurrence(schedule.id, 1.0, ME, OccurrenceState.RUNNING)
        await core.store.write(lambda uow: uow.schedules.add_occurrence(time))
        await forget(core)
        ended = await service.end(time, OccurrenceResult("", f"the model rejected {FACT!r}", turn_id="t1"))
        assert ended is not None
        assert ended[0].problem == "the model rejected '[forgotten]'"
        assert ended[1] is not None
        assert "[forgotten]" in ended[1].text
        assert await places(core) == ()


async def test_a_delivery_does_not_restore_the_problem_that_it_read_before_a_fact_was_forgotten(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        service = ScheduleService(core.store, core.clock, core.new_id)
        for at, retry_at in enumerate((None, 10.0, 0.0)):
            schedule = await service.add(NewSchedule(ME, "every 1h", "UTC", "say it", name=f"task-{at}"))
            time = Occurrence(schedule.id, 1.0, ME, OccurrenceState.DELIVERING, problem=f"no {FACT}")
            await core.store.write(lambda uow, time=time: uow.schedules.add_occurrence(time))
            assert await service.claim(time, 100.0)
            await forget(core)
            if retry_at == 0.0:
                await service.mark_delivered(time)
            else:
                await service.mark_delivery_failed(time, f"the server answers {FACT}", retry_at)
            assert await places(core) == ()
            output = await service.output(time)
            assert output is not None
            assert output.occurrence.attempts == 1
            assert output.occurrence.problem == ("the server answers [forgotten]" if at == 0 else "no [forgotten]")


async def test_the_answer_of_a_command_is_stored_without_a_fact_that_was_forgotten_while_it_ran(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        row, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/notes", command=True))
        before = await core.store.read(lambda uow: uow.erasure.forget_count(ME))
        await forget(core)
        reply = await core.lifecycle.answer_command(row, f"- {FACT}", before)
        assert reply is not None
        assert reply.text == "- [forgotten]"
        row, _ = await core.lifecycle.accept(Inbound(TELEGRAM, ME, "/notes", command=True))
        now = await core.store.read(lambda uow: uow.erasure.forget_count(ME))
        reply = await core.lifecycle.answer_command(row, f"- {FACT}", now)
        assert reply is not None
        assert reply.text == f"- {FACT}", "noted again"


async def test_a_question_of_a_running_turn_is_stored_without_a_forgotten_fact(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.lifecycle.accept(Inbound(TELEGRAM, ME, "send it"))
        claim = await core.lifecycle.begin_turn(TELEGRAM)
        assert claim is not None
        text = f"May I do this?\nsend {FACT}"
        question = Reply("q", TELEGRAM, claim.ref.session_id, ME, text, ReplyState.READY, 1.0)
        assert (await core.store.write(lambda uow: _put_question(uow, question))).text == text
        await forget(core)
        assert (await core.store.write(lambda uow: _put_question(uow, question))).text.endswith("send [forgotten]")
        assert await places(core) == ()


async def test_a_note_file_saved_from_an_old_copy_does_not_restore_a_fact(tmp_path: Path) -> None:
    async with Runtime(Settings(tmp_path)) as runtime:
        owner, lifecycle = runtime.settings.owner, runtime.lifecycle
        fact = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, FACT)
        note = await lifecycle.write_note(fact, owner=owner)
        await lifecycle.forget(ForgetFact(note.note_id), owner=owner)
        file = tmp_path / "memory" / "MEMORY.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{FACT}\n§\n[forgotten]\n§\nremember that {FACT}")
        assert await runtime.sync_notes(owner) == ""
        assert file.read_text().strip() == "remember that [forgotten]"
        await lifecycle.write_note(fact, owner=owner)
        assert await runtime.sync_notes(owner) == ""
        file.write_text(file.read_text().replace(f"§\n{FACT}", f"§\n{FACT}, and 12"))
        assert await runtime.sync_notes(owner) == ""
        assert f"{FACT}, and 12" in file.read_text(), "noted again"


async def test_a_note_that_is_forgotten_while_its_file_is_written_is_not_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(Settings(tmp_path)) as here, Runtime(Settings(tmp_path)) as elsewhere:
        owner, loop = here.settings.owner, asyncio.get_running_loop()
        note = await here.lifecycle.write_note(NoteChange(NoteAction.ADD, NoteTarget.MEMORY, FACT), owner=owner)
        write, written = note_files._write, list[str]()  # noqa: SLF001 - wrapped below # pyright: ignore[reportPrivateUsage]
        requests: list[concurrent.futures.Future[int]] = []

        def write_late(path: Path, content: str) -> None:
            """Give another process time to forget the note and erase the files; the write lock makes it wait."""
            if not written:
                forgetting = elsewhere.lifecycle.forget(ForgetFact(note.note_id), owner=owner)
                requests.append(asyncio.run_coroutine_threadsafe(forgetting, loop))
                concurrent.futures.wait(requests, timeout=0.5)
            written.append(content)
            write(path, content)

        monkeypatch.setattr(note_files, "_write", write_late)
        assert await here.sync_notes(owner) == ""
        assert FACT in written[0]
        await asyncio.wrap_future(requests[0])
        assert FACT not in (tmp_path / "memory" / "MEMORY.md").read_text()
        assert await here.sync_notes(owner) == ""
        assert (tmp_path / "memory" / "MEMORY.md").read_text() == ""


async def test_an_error_that_quotes_a_forgotten_fact_is_stored_without_it(tmp_path: Path) -> None:
    async with CoreFixture(tmp_path) as core:
        await core.turn(CLI, "hello")
        session_id = (await core.at(CLI)).session_id
        await forget(core)
        text = f"could not summarise {FACT}"
        await core.store.write(lambda uow: uow.incidents.add(Incident(1.0, "review", session_id, text)))
        await core.store.write(lambda uow: uow.incidents.add(Incident(1.0, "platform", None, text)))
        await core.store.write(lambda uow: uow.compression_pauses.put(CompressionPause(session_id, "m", 1, 2.0, text)))
        assert await core.store.read(lambda uow: uow.erasure.erase_facts_from_error(text, session_id)) != text
        assert await places(core) == ()
        incidents = await core.store.read(lambda uow: uow.incidents.newest(2))
        assert {incident.text for incident in incidents} == {"could not summarise [forgotten]"}
