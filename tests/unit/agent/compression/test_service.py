"""Compression of conversations: the child session, failures and cooldown, the hard stop, memory hooks and engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture, tool
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, TELEGRAM, AsyncDiary, until

from everthread.agent.compression.attempt import PASS_S_MAX
from everthread.agent.compression.policy import EXTRACT_NAME, ContextFill
from everthread.agent.compression.service import AT_ONCE_MAX, COOL_DOWN_S
from everthread.agent.compression.summarizer import INSTRUCTION
from everthread.agent.events import Compressed, Compressing, CompressionFailed
from everthread.agent.turn_options import TurnOptions
from everthread.config.schema import CompressionSettings
from everthread.domain.boundary import Branch, New, Resume, Rewind
from everthread.domain.clock_rules import AHEAD_S_MAX
from everthread.domain.errors import BadConfig, Busy, ContextTooLong, ModelUnavailable, NotCompressed
from everthread.domain.model import ChatType, Message, Role, SessionKey, SessionRef, ToolCall, TurnStatus
from everthread.lifecycle import ForgetFact, ForgetOwner, ForgetSession
from everthread.memory import manager
from everthread.ports.context import Middle, Reader, Rollover
from everthread.ports.model import Answer, Delta, Request, Traits, Usage

SUMMARY = "## Goal\n- sail around the {}\n\n## Files and identifiers\n- /srv/boats.txt"
FULL = Usage(70_000, 10)
EMPTY = Usage(1_000, 10)


def summarised(place: str = "world") -> str:
    return SUMMARY.format(place)


class CompressionFixture(AgentFixture):
    """Agent with compression enabled; the tail holds about ten turns."""

    def __init__(self, folder: Path, *providers: object, **more: Any) -> None:
        more.setdefault("compression", CompressionSettings(tail_tokens=200))
        more.setdefault("summariser", FakeModel([summarised()]))
        model = FakeModel(["fine"], usage=EMPTY)
        super().__init__(folder, more.pop("model", model), *providers, **more)

    async def talk(self, *texts: str, full: bool = False) -> None:
        for text in texts:
            await self.ask(text)
        if full:
            await self.fill_up()

    async def fill_up(self, text: str = "the last straw") -> None:
        """Run a turn after which the model reports a window that is half full."""
        self.model.usage = FULL
        await self.ask(text)
        self.model.usage = EMPTY

    async def compressed(self) -> Compressed:
        await until(lambda: any(isinstance(event, Compressed) for event in self.heard), "it was never compressed")
        await until(lambda: not self.compressor.busy)
        return next(event for event in self.heard if isinstance(event, Compressed))

    async def idle(self) -> None:
        await until(lambda: not self.compressor.busy)

    @property
    def failures(self) -> list[str]:
        return [event.text for event in self.heard if isinstance(event, CompressionFailed)]

    @property
    def passes(self) -> int:
        assert self.summariser is not None
        return len(self.summariser.requests)


class GatedModel(FakeModel):
    """Summariser that answers only after the gate is opened."""

    def __init__(self, gate: asyncio.Event, line: str) -> None:
        super().__init__([line])
        self.gate = gate
        self.reached = asyncio.Event()
        self.waiting = 0

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Answer, None]:
        self.reached.set()
        self.waiting += 1
        await self.gate.wait()
        async for part in super().stream(request):
            yield part


LONG = [f"turn {number}: " + "of boats and masts and sails " * 8 for number in range(1, 9)]


async def test_a_full_conversation_continues_in_a_child_with_a_summary_and_its_last_turns(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        await core.lifecycle.rename((await core.at(CLI)).session_id, "boats", owner=ME)
        parent = await core.at(CLI)
        await core.fill_up()
        event = await core.compressed()
        here = await core.at(CLI)
        assert here == event.ref
        old, new = await core.session(parent.session_id), await core.session(here.session_id)
        assert (old.title, new.title) == ("boats", "boats #2")
        assert (old.end_reason, new.parent_id, new.cause.value) == ("compressed", old.id, "compression")
        shown = await core.shown(here.session_id)
        assert shown == [*LONG, "the last straw"][-len(shown) :]
        assert event.turns == len(LONG) + 1 - len(shown)
        assert event.text.startswith(f"Compressed: {event.turns} turns into a summary (about 70,010 tokens before, ")
        assert len(await core.turns(parent.session_id)) == len(LONG) + 1, "the transcript of the parent is complete"
        await core.ask("and now?")
        sent = core.model.sent()
        assert "sail around the world" in json.loads(core.model.requests[-1].head)[1], "the summary is in the prefix"
        assert "the last straw" in sent
        assert "turn 1:" not in sent


async def test_the_summariser_gets_one_user_message_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Never speak of whales.")
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG, full=True)
        await core.compressed()
        assert core.summariser is not None
        [request] = core.summariser.requests
        assert json.loads(request.head) == ["summariser", "", []], "no system prompt, no tools"
        assert (request.history, request.recall) == (b"", "")
        [message] = request.tail
        assert message.role is Role.USER
        assert INSTRUCTION in message.content
        assert "turn 1: of boats" in message.content
        assert "the last straw" not in message.content, "turns of the tail are not summarised"
        assert "whales" not in message.content, "standing rules are not summarised"
        await core.ask("and now?")
        assert "Never speak of whales." in core.model.sent(), "standing rules are rendered again"


async def test_the_next_summary_updates_the_previous_one(tmp_path: Path) -> None:
    summariser = FakeModel([summarised("world"), summarised("Horn")])
    async with CompressionFixture(tmp_path, summariser=summariser) as core:
        await core.talk(*LONG, full=True)
        await core.compressed()
        core.heard.clear()
        await core.talk(*LONG, full=True)
        await core.compressed()
        assert "sail around the world" not in summariser.requests[0].tail[0].content
        assert "sail around the world" in summariser.requests[1].tail[0].content
        await core.ask("and now?")
        assert "sail around the Horn" in core.model.sent()
        assert "sail around the world" not in core.model.sent()


async def test_turns_during_a_summary_become_part_of_the_tail(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with CompressionFixture(tmp_path, summariser=GatedModel(gate, summarised())) as core:
        await core.talk(*LONG, full=True)
        assert (await core.ask("meanwhile one")).text == "fine", "the answer does not wait for the summary"
        await core.ask("meanwhile two")
        parent = await core.at(CLI)
        gate.set()
        await core.compressed()
        here = await core.at(CLI)
        assert here.session_id != parent.session_id
        assert (await core.shown(here.session_id))[-3:] == ["the last straw", "meanwhile one", "meanwhile two"]


async def test_a_summary_that_is_ready_during_a_turn_is_applied_after_it(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with CompressionFixture(tmp_path, summariser=GatedModel(gate, summarised())) as core:
        await core.talk(*LONG, full=True)
        answering = asyncio.Event()

        def line(request: Request) -> str:
            answering.set()
            return "one two three four five six seven eight"

        core.model.lines, core.model.pause_s = [line], 0.02
        turn = asyncio.ensure_future(core.ask("in the middle"))
        await answering.wait()
        gate.set()
        ended = await turn
        event = await core.compressed()
        assert ended.committed.ref.session_id != event.ref.session_id, "the turn stays in the session it began in"
        assert (await core.shown(event.ref.session_id))[-1] == "in the middle", "the child shows the turn"


@pytest.mark.parametrize("boundary", [Rewind(1), New(), Resume("")])
async def test_a_summary_is_discarded_if_the_session_changed_meanwhile(tmp_path: Path, boundary: Any) -> None:
    gate = asyncio.Event()
    summariser = GatedModel(gate, summarised())
    async with CompressionFixture(tmp_path, summariser=summariser) as core:
        other = (await core.turn(TELEGRAM, "elsewhere")).ref.session_id
        await core.talk(*LONG, full=True)
        boundary = Resume(other) if isinstance(boundary, Resume) else boundary
        parent = await core.at(CLI)
        await summariser.reached.wait()
        await core.cross(CLI, boundary)
        here = await core.at(CLI)
        gate.set()
        await core.idle()
        assert await core.at(CLI) == here
        assert (await core.session(parent.session_id)).end_reason != "compressed"
        assert not any(isinstance(event, Compressed) for event in core.heard)


async def test_a_summary_is_discarded_if_a_fact_was_forgotten_meanwhile(tmp_path: Path) -> None:
    gate = asyncio.Event()
    summariser = GatedModel(gate, summarised("Atlantic"))
    async with CompressionFixture(tmp_path, summariser=summariser) as core:
        note = await core.note("the Atlantic is cold")
        await core.talk(*LONG, full=True)
        here = await core.at(CLI)
        await summariser.reached.wait()
        await core.lifecycle.forget(ForgetFact(note.note_id), owner=ME)
        gate.set()
        await core.idle()
        assert await core.at(CLI) == here


async def test_a_context_too_long_error_compresses_before_the_next_turn(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        core.model.lines = [ContextTooLong("128,001 tokens are too many"), "fine"]
        assert "too many" in (await core.ask("once")).problem
        await core.ask("and now?")
        assert "sail around the world" in core.model.sent()


async def test_every_key_of_the_conversation_moves_to_the_child(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        parent = await core.at(CLI)
        await core.cross(TELEGRAM, Resume(parent.session_id))
        await core.fill_up()
        event = await core.compressed()
        assert (await core.at(TELEGRAM)).session_id == event.ref.session_id == (await core.at(CLI)).session_id


@pytest.mark.parametrize("boundary", [New(), Branch()])
async def test_a_turn_whose_user_has_left_starts_no_summary(tmp_path: Path, boundary: New | Branch) -> None:
    answering, left = asyncio.Event(), asyncio.Event()

    async def look(arguments: Any, use: Any) -> str:
        answering.set()
        await left.wait()
        return "a tree"

    async with CompressionFixture(tmp_path, tools=(tool("look", look),)) as core:
        await core.talk(*LONG)
        core.model.lines, core.model.usage = [ToolCall("c1", "look", "{}"), "fine"], FULL
        turn = asyncio.ensure_future(core.ask("the last straw"))
        await answering.wait()
        await core.cross(CLI, boundary)
        left.set()
        assert (await turn).committed.status is TurnStatus.LATE
        await core.idle()
        assert core.passes == 0


# --- Failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (ModelUnavailable("it is down", retry_after_s=900), "it is down"),
        ("I would rather not.", "none of the requested sections"),
        ("## Goal\n" + "more and more " * 2_000, "longer than the turns it would replace"),
        (RuntimeError("a bug"), "internal error"),
    ],
)
async def test_a_failed_summary_leaves_the_session_unchanged_and_starts_a_cooldown(
    tmp_path: Path, line: object, said: str
) -> None:
    async with CompressionFixture(tmp_path, summariser=FakeModel([line, summarised()])) as core:
        await core.talk(*LONG, full=True)
        await core.idle()
        here = await core.at(CLI)
        assert len(await core.turns(here.session_id)) == len(LONG) + 1
        [failure] = core.failures
        assert said in failure
        assert "It is unchanged; the next attempt is in 5 minutes" in failure
        assert said in await core.agent.compression_status(here.session_id)
        await core.fill_up("once more")
        await core.idle()
        assert core.passes == 1, "no pass runs during the cooldown"
        await core.later(COOL_DOWN_S + 1)
        await core.fill_up("later")
        assert (await core.compressed()).ref == await core.at(CLI)
        assert await core.agent.compression_status((await core.at(CLI)).session_id) == ""


async def test_compression_stops_after_passes_that_save_nothing(tmp_path: Path) -> None:
    """The prompt alone exceeds the threshold: without a stop, every turn would start a summary."""
    async with CompressionFixture(tmp_path, compression=CompressionSettings(share=0.05, tail_tokens=200)) as core:
        core.model.usage = Usage(50_000, 10)
        for number in range(30):
            await core.ask(f"turn {number}: " + "of boats and masts and sails " * 8)
            await core.idle()
        assert core.passes <= 4
        [failure] = core.failures
        assert "has stopped: the last 2 summaries saved too little" in failure
        here = await core.at(CLI)
        assert "compression.share" in await core.agent.compression_status(here.session_id)
        # A manual request still compresses.
        before = core.passes
        await core.agent.compress(CLI, core.choices[0], owner=ME)
        assert core.passes == before + 1


async def test_a_cooldown_and_its_reason_survive_a_restart(tmp_path: Path) -> None:
    async with CompressionFixture(
        tmp_path, summariser=FakeModel([ModelUnavailable("it is down", retry_after_s=900)])
    ) as core:
        await core.talk(*LONG, full=True)
        await core.idle()
        assert core.passes == 1
    async with CompressionFixture(tmp_path) as core:
        here = await core.at(CLI)
        assert "it is down" in await core.agent.compression_status(here.session_id)
        await core.fill_up("once more")
        await core.idle()
        assert (core.passes, core.failures) == (0, [])
        await core.later(COOL_DOWN_S + 1)
        await core.fill_up("later")
        after = (await core.compressed()).ref
        assert after == await core.at(CLI)
        for session_id in (here.session_id, after.session_id):
            assert await core.agent.compression_status(session_id) == ""
            assert (
                await core.store.read(lambda uow, session_id=session_id: uow.compression_pauses.get(session_id)) is None
            )


async def test_compression_that_stopped_stays_stopped_in_later_processes(tmp_path: Path) -> None:
    """Each question is answered by a process of its own, as with one-shot use."""
    passes, failures = 0, list[str]()
    for number in range(12):
        async with Narrow(tmp_path, compression=CompressionSettings(share=0.05, tail_tokens=200)) as core:
            core.model.usage = Usage(31_000, 10)
            await core.ask(f"turn {number}: " + "of boats " * 300)
            await core.idle()
            passes, failures = passes + core.passes, failures + core.failures
            here = (await core.at(CLI)).session_id
            status = await core.agent.compression_status(here)
    assert passes <= 4
    assert "the last 2 summaries saved too little" in status
    assert len([text for text in failures if "has stopped" in text]) == 1
    async with Narrow(tmp_path) as core:
        before = core.passes
        await core.agent.compress(CLI, core.choices[0], owner=ME)
        assert core.passes == before + 1, "a manual request still compresses"


@pytest.mark.parametrize("what", ["session", "owner"])
async def test_forgetting_a_session_deletes_its_compression_pause(tmp_path: Path, what: str) -> None:
    async with CompressionFixture(
        tmp_path, summariser=FakeModel([ModelUnavailable("it is down", retry_after_s=900)])
    ) as core:
        await core.talk(*LONG, full=True)
        await core.idle()
        session_id = (await core.at(CLI)).session_id
        assert await core.store.read(lambda uow: uow.compression_pauses.get(session_id)) is not None
        await core.lifecycle.forget(ForgetSession(session_id) if what == "session" else ForgetOwner(), owner=ME)
        assert await core.store.read(lambda uow: uow.compression_pauses.get(session_id)) is None


async def test_each_model_has_its_own_bounds(tmp_path: Path) -> None:
    small = FakeModel(["fine"], given_traits=Traits(context_tokens=8_000), usage=Usage(7_000, 1))
    async with CompressionFixture(tmp_path, summariser=None) as core:
        core.summariser = None
        await core.talk(*LONG)
        large = core.choices
        core.choices = [small.choice("fake/small")]
        await core.talk("one", "two")
        await core.idle()
        [failure] = core.failures
        assert "fake/small has a context of 8,000 tokens, but summaries need 16,000" in failure, "reported once"
        with pytest.raises(NotCompressed, match="fake/small has a context of 8,000"):
            await core.agent.compress(CLI, core.choices[0], owner=ME)
        core.choices = large
        core.model.lines = [lambda request: summarised() if INSTRUCTION in request.tail[0].content else "fine"]
        await core.fill_up()
        assert (await core.compressed()).turns > 0


async def test_a_smaller_context_of_the_summariser_is_the_threshold(tmp_path: Path) -> None:
    reader = FakeModel([summarised()], given_traits=Traits(context_tokens=20_000))
    async with CompressionFixture(tmp_path, summariser=reader) as core:
        await core.talk(*LONG)
        core.model.usage = Usage(19_000, 999)
        await core.ask("not yet")
        await core.idle()
        assert core.passes == 0
        core.model.usage = Usage(19_000, 1_000)
        await core.ask("now")
        await core.compressed()


async def test_a_conversation_longer_than_the_summarisers_context_is_read_in_pieces(tmp_path: Path) -> None:
    reader = FakeModel([summarised()], given_traits=Traits(context_tokens=16_000))
    async with CompressionFixture(tmp_path, summariser=reader) as core:
        await core.talk(*(f"turn {number}: " + "of boats " * 1_500 for number in range(1, 9)), full=True)
        await core.compressed()
        assert core.passes > 1
        read = "".join(request.tail[0].content for request in reader.requests)
        assert all(f"turn {number}: of boats" in read for number in range(1, 9))
        assert all(len(request.tail[0].content) < 12_000 * 3 for request in reader.requests)
        assert "sail around the world" in reader.requests[1].tail[0].content


async def test_two_processes_do_not_pay_for_the_same_summary(tmp_path: Path) -> None:
    gate = asyncio.Event()
    first = GatedModel(gate, summarised("one"))
    async with (
        CompressionFixture(tmp_path, summariser=first) as one,
        CompressionFixture(tmp_path, summariser=GatedModel(gate, summarised("two"))) as two,
    ):
        await one.talk(*LONG)
        parent = await one.at(CLI)
        await two.cross(TELEGRAM, Resume(parent.session_id))
        await one.fill_up()
        # Its background pass acquires the lease before it calls the model.
        await first.reached.wait()
        two.model.usage = FULL
        await two.ask("from elsewhere", TELEGRAM)
        await two.idle()
        gate.set()
        event = await one.compressed()
        assert (one.passes, two.passes) == (1, 0)
        assert two.failures == []
        assert (await two.at(TELEGRAM)).session_id == event.ref.session_id
        children = await one.store.read(lambda uow: uow.archive.children(parent.session_id))
        assert len(children) == 1


async def test_the_lease_of_a_killed_process_blocks_summaries_only_until_it_expires(tmp_path: Path) -> None:
    async with Narrow(tmp_path, stop_s_max=0.3) as core:
        await core.turn(CLI, "hello")
        here = await core.at(CLI)
        name = f"compress:{here.session_id}"
        await core.store.write(lambda uow: uow.leases.acquire(name, "killed", core.clock.now(), PASS_S_MAX))
        await core.overflow()
        assert (core.passes, core.failures) == (0, []), "the lease of the killed process is respected"
        assert (await core.ask("and now?")).text == "fine"
        event = next(event for event in core.heard if isinstance(event, Compressed))
        assert event.instead_because == "another process is making one"
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        name = f"compress:{(await core.at(CLI)).session_id}"
        await core.store.write(lambda uow: uow.leases.acquire(name, "killed", core.clock.now(), PASS_S_MAX))
        await core.fill_up()
        await core.idle()
        assert core.passes == 0
        await core.later(PASS_S_MAX + 1)
        await core.fill_up()
        await core.compressed()


async def test_a_small_step_back_of_the_clock_leaves_the_lease_of_a_running_pass_alone(tmp_path: Path) -> None:
    summariser = GatedModel(asyncio.Event(), summarised())
    async with CompressionFixture(tmp_path, summariser=summariser) as core:
        await core.talk(*LONG, full=True)
        await summariser.reached.wait()
        name, start = f"compress:{(await core.at(CLI)).session_id}", core.clock.now()

        async def is_held(after_s: float) -> bool:
            return await core.store.read(lambda uow: uow.leases.is_held(name, start + after_s))

        await core.store.write(lambda uow: uow.leases.shorten(start - 1.0, 60.0))
        assert [await is_held(PASS_S_MAX - 1), await is_held(PASS_S_MAX)] == [True, False]
        await core.store.write(lambda uow: uow.leases.shorten(start - AHEAD_S_MAX - 1.0, 60.0))
        assert not await is_held(60.0 - AHEAD_S_MAX), "after a large step it is shortened"


async def test_a_process_that_stops_during_a_summary_leaves_the_conversation_unchanged(tmp_path: Path) -> None:
    summariser = GatedModel(asyncio.Event(), summarised())
    async with CompressionFixture(tmp_path, summariser=summariser) as core:
        await core.talk(*LONG, full=True)
        await summariser.reached.wait()
        here = await core.at(CLI)
    async with CompressionFixture(tmp_path) as core:
        assert await core.at(CLI) == here
        await core.fill_up()
        assert (await core.compressed()).ref == await core.at(CLI), "the next process compresses without delay"


async def test_only_one_of_two_summaries_of_a_session_is_applied(tmp_path: Path) -> None:
    """The boundary refuses the second summary, independent of the lease."""
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        parent = await core.at(CLI)
        first, second = await core.compression(CLI, "one"), await core.compression(CLI, "two")
        assert (await core.cross(CLI, first)).refusal is None
        assert (await core.cross(CLI, second)).refusal is not None
        children = await core.store.read(lambda uow: uow.archive.children(parent.session_id))
        assert len(children) == 1


# --- The hard stop ---------------------------------------------------------------------------------------------------


class Narrow(CompressionFixture):
    """Agent whose model has a context of 16,000 tokens, so that a few long turns fill it."""

    def __init__(self, folder: Path, *providers: object, **more: Any) -> None:
        model = FakeModel(["fine"], given_traits=Traits(context_tokens=16_000), usage=EMPTY)
        super().__init__(folder, *providers, model=model, **more)

    async def overflow(self) -> None:
        for number in range(1, 5):
            await self.ask(f"turn {number}: " + "of boats " * 850)
        await self.idle()


async def test_a_turn_waits_for_the_summary_before_the_window_overflows(tmp_path: Path) -> None:
    async with Narrow(tmp_path, compression=CompressionSettings(share=0.8, tail_tokens=200)) as core:
        lasting, core.options = core.options, lambda: TurnOptions(core.choices, core.heard.append, lasting=False)
        await core.overflow()
        assert core.passes == 0, "no summary was made in the background"
        core.options = lasting
        await core.ask("and now?")
        assert any(isinstance(event, Compressing) for event in core.heard)
        assert core.passes == 1
        assert "sail around the world" in core.model.sent()


@pytest.mark.parametrize("line", [ModelUnavailable("it is down", retry_after_s=900), "no summary"])
async def test_at_the_hard_stop_a_labelled_extract_replaces_a_failed_summary(tmp_path: Path, line: object) -> None:
    async with Narrow(tmp_path, summariser=FakeModel([line])) as core:
        await core.overflow()
        assert "not compressed" in core.failures[0]
        parent = await core.at(CLI)
        await core.ask("and now?")
        event = next(event for event in core.heard if isinstance(event, Compressed))
        assert any(isinstance(event, Compressing) for event in core.heard)
        assert "into a mechanical extract" in event.text
        assert "no summary could be made: " in event.text
        assert EXTRACT_NAME in json.loads(core.model.requests[-1].head)[1]
        assert "turn 1: of boats" in core.model.sent()
        assert len(await core.turns(parent.session_id)) == 4


async def test_at_the_hard_stop_the_wait_for_a_slow_summariser_is_bounded(tmp_path: Path) -> None:
    core = Narrow(tmp_path, summariser=GatedModel(asyncio.Event(), summarised()), stop_s_max=0.2)
    async with core:
        for number in range(1, 5):
            await core.ask(f"turn {number}: " + "of boats " * 850)
        assert (await core.ask("and now?")).text == "fine"
        event = next(event for event in core.heard if isinstance(event, Compressed))
        assert event.instead_because == "no summary within 0.2 s"


async def test_at_the_hard_stop_a_turn_does_not_queue_behind_other_summaries(tmp_path: Path) -> None:
    gate = asyncio.Event()
    summariser = GatedModel(gate, summarised())
    async with Narrow(tmp_path, summariser=summariser) as core:
        others = [SessionKey("main", "cli", ChatType.DM, f"other {number}") for number in range(AT_ONCE_MAX)]
        for number in range(1, 5):
            for key in others:
                await core.ask(f"turn {number}: " + "of boats " * 850, key)
        await until(lambda: summariser.waiting == AT_ONCE_MAX, "the others are not being summarised")
        for number in range(1, 5):
            await core.ask(f"turn {number}: " + "of boats " * 850)
        answering = asyncio.ensure_future(core.ask("and now?"))
        await until(lambda: summariser.waiting == AT_ONCE_MAX + 1, "it waits for the others")
        gate.set()
        assert (await answering).text == "fine"
        await core.idle()


@pytest.mark.parametrize("tokens", [1_000, 120_000])
async def test_a_turn_accepts_a_compression_that_happens_while_it_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        measured: list[ContextFill] = []
        read_inline = core.store.read_inline

        async def measure(ref: SessionRef) -> ContextFill:
            measured.append(ContextFill(1_000, 10_000, 100_000, tokens))
            return measured[0]

        async def meanwhile(work: Any) -> Any:
            if measured:
                measured.clear()
                await core.agent.compress(CLI, core.choices[0], owner=ME)
            return await read_inline(work)

        monkeypatch.setattr(core.store, "read_inline", meanwhile)
        # The fill for another model is not known yet, so it is measured.
        await core.compressor.before_turn(CLI, core.model.choice("fake/other"), measure, core.heard.append)
        assert core.passes == 1, "the new child is not summarised again"
        assert await core.compressor.status((await core.at(CLI)).session_id) == ""


async def test_a_message_that_would_not_fit_waits_for_the_summary(tmp_path: Path) -> None:
    async with Narrow(tmp_path, compression=CompressionSettings(share=0.8, tail_tokens=200)) as core:
        core.model.usage = Usage(9_000, 10)
        for number in range(1, 4):
            await core.ask(f"turn {number}: " + "of boats " * 500)
        await core.ask("short")
        assert core.passes == 0, "the history and a short message fit"
        await core.ask("a long one: " + "of masts and sails " * 1_000)
        assert core.passes == 1
        assert "sail around the world" in core.model.sent()
        assert core.failures == []


async def test_a_finished_summary_at_the_hard_stop_is_kept_while_the_session_is_busy(tmp_path: Path) -> None:
    """A running turn of another key blocks the boundary; the summary is applied after it and not paid for twice."""
    async with Narrow(tmp_path, compression=CompressionSettings(share=0.8, tail_tokens=200)) as core:
        lasting, core.options = core.options, lambda: TurnOptions(core.choices, core.heard.append, lasting=False)
        await core.overflow()
        core.options = lasting
        await core.lifecycle.cross(TELEGRAM, Resume((await core.at(CLI)).session_id), owner=ME)
        await core.say("hello", TELEGRAM)
        running = await core.lifecycle.begin_turn(TELEGRAM)
        assert running is not None
        await core.say("and now?")
        with pytest.raises(Busy):
            await core.agent.answer(CLI, core.options())
        assert core.passes == 1
        await core.lifecycle.commit_turn(running, [Message(Role.USER, "hello"), Message(Role.ASSISTANT, "hi")], None)
        await core.agent.answer(CLI, core.options())
        event = next(event for event in core.heard if isinstance(event, Compressed))
        assert event.instead_because == ""
        assert core.passes == 1
        assert "sail around the world" in core.model.sent()


async def test_a_new_process_detects_that_a_conversation_does_not_fit(tmp_path: Path) -> None:
    async with Narrow(tmp_path, compression=CompressionSettings(enabled=False)) as core:
        await core.overflow()
    async with Narrow(tmp_path) as core:
        await core.ask("and now?")
        assert core.passes == 1
        assert "sail around the world" in core.model.sent(), "compressed before the first turn"


# --- Memory and engines ----------------------------------------------------------------------------------------------


class Hinting(AsyncDiary):
    def __init__(self, name: str, hint: Callable[[], str]) -> None:
        super().__init__(name)
        self.hint = hint
        self.asked: list[tuple[str, list[Message]]] = []

    async def on_pre_compress(self, messages: Any, *, ref: Any) -> str:
        self.asked.append((ref.session_id, list(messages)))
        return self.hint()


def broken() -> str:
    raise RuntimeError("a bug of the provider")


async def test_providers_supply_hints_and_receive_the_session_switch(tmp_path: Path) -> None:
    good, bad = Hinting("good", lambda: "Bruno is afraid of thunder."), Hinting("bad", broken)
    async with CompressionFixture(tmp_path, good, bad) as core:
        await core.talk(*LONG, full=True)
        parent = (await core.at(CLI)).session_id
        event = await core.compressed()
        assert core.summariser is not None
        assert "Bruno is afraid of thunder." in core.summariser.requests[0].tail[0].content
        [(asked_for, messages)] = good.asked
        assert asked_for == parent
        assert messages[0].content == LONG[0]
        await core.settled()
        [switch] = good.book.of("on_session_switch", event.ref.session_id)
        assert (switch.more["parent_session_id"], switch.more["reset"]) == (parent, False)
        assert good.book.told(parent)[-1] == "end", "the parent is closed after its last turn"


async def test_the_wait_for_a_hanging_provider_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(AsyncDiary):
        async def on_pre_compress(self, messages: Any, *, ref: Any) -> str:
            await asyncio.Event().wait()
            return "never"

    assert manager.HOOK_S_MAX == 5.0
    monkeypatch.setattr(manager, "HOOK_S_MAX", 0.2)
    async with CompressionFixture(tmp_path, Hanging()) as core:
        await core.talk(*LONG, full=True)
        await core.compressed()
        assert core.summariser is not None
        assert "A memory of the user's" not in core.summariser.requests[0].tail[0].content


class Engine:
    """Context engine as a plugin might register it."""

    def __init__(self) -> None:
        self.middles: list[Middle] = []
        self.rollovers: list[Rollover] = []
        self.fails = False

    def reader(self, model: str) -> Reader:
        return Reader("engine", 1_000_000)

    async def summarise(self, middle: Middle) -> str:
        self.middles.append(middle)
        return f"{len(middle.turns)} turns about boats"

    async def on_rollover(self, rollover: Rollover) -> None:
        self.rollovers.append(rollover)
        if self.fails:
            raise RuntimeError("a bug of the engine")


async def test_a_custom_engine_makes_the_summary_and_receives_every_rollover(tmp_path: Path) -> None:
    engine = Engine()
    async with CompressionFixture(tmp_path, engine=engine) as core:
        for count in (1, 2):
            await core.talk(*LONG, full=True)
            left = await core.at(CLI)
            await core.compressed()
            core.heard.clear()
            assert len(engine.rollovers) == count
            rollover = engine.rollovers[-1]
            assert (rollover.left.session_id, rollover.entered) == (left.session_id, await core.at(CLI))
            assert rollover.turns == len(engine.middles[-1].turns)
        assert engine.middles[1].previous == engine.rollovers[0].summary
        engine.fails = True
        await core.talk(*LONG, full=True)
        await core.compressed()
        await core.reported("context_engine", "a bug of the engine")


async def test_the_engine_receives_a_rollover_even_if_the_process_stops(tmp_path: Path) -> None:
    engine = Engine()
    async with CompressionFixture(tmp_path, engine=engine) as core:
        cross, crossed = core.lifecycle.cross, asyncio.Event()

        async def slow(*args: Any, **more: Any) -> Any:
            crossing = await cross(*args, **more)
            crossed.set()
            await asyncio.sleep(0.05)
            return crossing

        core.lifecycle.cross = slow
        await core.talk(*LONG, full=True)
        await crossed.wait()
        await core.compressor.aclose()
        assert [rollover.entered for rollover in engine.rollovers] == [await core.at(CLI)]


@pytest.mark.parametrize("error", [BadConfig("there is no such model"), RuntimeError("a bug of the engine")])
async def test_an_engine_without_a_reader_does_not_fail_the_turn(tmp_path: Path, error: Exception) -> None:
    class Blind(Engine):
        def reader(self, model: str) -> Reader:
            raise error

    async with CompressionFixture(tmp_path, engine=Blind()) as core:
        await core.talk(*LONG)
        core.model.usage = FULL
        ended = await core.ask("the last straw")
        assert (ended.text, ended.problem) == ("fine", "")
        assert (await core.ask("and on")).text == "fine"
        [failure] = core.failures
        assert str(error) in failure
        with pytest.raises(NotCompressed, match=str(error)):
            await core.agent.compress(CLI, core.choices[0], owner=ME)


# --- On request ------------------------------------------------------------------------------------------------------


async def test_a_manual_compression_passes_its_focus_to_the_summariser(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG[:4])
        event = await core.agent.compress(CLI, core.choices[0], owner=ME, focus="the masts")
        assert event.turns >= 1
        assert core.summariser is not None
        assert "keep what concerns this: the masts" in core.summariser.requests[0].tail[0].content
        await core.ask("and now?")
        assert "sail around the world" in core.model.sent()


async def test_a_manual_compression_without_older_turns_or_by_another_owner_is_refused(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        with pytest.raises(NotCompressed, match="nothing to compress"):
            await core.agent.compress(CLI, core.choices[0], owner=ME)
        await core.talk("hello")
        with pytest.raises(NotCompressed, match="nothing to compress"):
            await core.agent.compress(CLI, core.choices[0], owner="somebody else")
        with pytest.raises(NotCompressed, match="no older turns"):
            await core.agent.compress(CLI, core.choices[0], owner=ME)
        assert core.passes == 0


async def test_a_process_that_ends_with_its_turn_starts_no_summary(tmp_path: Path) -> None:
    async with CompressionFixture(tmp_path) as core:
        await core.talk(*LONG)
        core.model.usage = FULL
        await core.say("once")
        await core.agent.answer(CLI, TurnOptions(core.choices, core.heard.append, lasting=False))
        assert not core.compressor.busy


async def test_the_summariser_reads_tool_calls_with_their_results(tmp_path: Path) -> None:
    async def run(arguments: Any, use: Any) -> str:
        return "a secret chart " + "x" * 20_000

    async with CompressionFixture(tmp_path, tools=(tool("chart", run),)) as core:
        core.model.lines = [ToolCall("c1", "chart", '{"sea": "Baltic"}'), "there it is", "fine"]
        await core.talk("show me the chart", *LONG, full=True)
        await core.compressed()
        assert core.summariser is not None
        text = core.summariser.requests[0].tail[0].content
        assert 'call of chart: {"sea": "Baltic"}' in text
        assert "result of chart: a secret chart" in text
        assert "characters left out" in text
