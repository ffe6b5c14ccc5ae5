"""Compression and reviews of a long conversation do not block the event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import CLI, ME, until

from everthread import concurrency as slices
from everthread.agent.compression.policy import ContextFill
from everthread.agent.events import Compressed
from everthread.concurrency import in_slices
from everthread.config.schema import CompressionSettings, ReviewSettings
from everthread.domain.model import Inbound, Message, Role, Turn, TurnStatus

TURNS = 300
MESSAGES = 100
HELD_S_MAX = 0.02
"""Longest step of the event loop that is accepted, in seconds."""
SUMMARY = "## Goal\n- sail around the world"


class LongConversationFixture(AgentFixture):
    """Agent with a conversation of thirty thousand short messages that this process has not prepared."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            FakeModel(["fine"]),
            compression=CompressionSettings(tail_tokens=200),
            summariser=FakeModel([SUMMARY]),
            review=ReviewSettings(every_turns=TURNS),
        )

    async def fill(self) -> None:
        talk = tuple(Message((Role.USER, Role.ASSISTANT)[n % 2], f"of boats and masts, {n}") for n in range(MESSAGES))
        for _ in range(TURNS):
            await self.lifecycle.accept(Inbound(CLI, ME, "hello"))
            ticket = await self.lifecycle.begin_turn(CLI)
            assert ticket is not None
            await self.lifecycle.commit_turn(ticket, talk, None)


@contextmanager
def steps(monkeypatch: pytest.MonkeyPatch) -> Generator[list[tuple[float, str]]]:
    """Record the CPU time of each step of the event loop, which does not depend on the load of the machine.

    The garbage collector is switched off: the gateway configures it when it starts.
    """
    took: list[tuple[float, str]] = []
    run = asyncio.Handle._run  # noqa: SLF001 - the only place that every step passes

    def measured(self: asyncio.Handle) -> None:
        begun = time.thread_time()
        run(self)
        took.append((time.thread_time() - begun, repr(self)))

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.Handle, "_run", measured)
            yield took
    finally:
        gc.enable()


@pytest.mark.timeout(120)
async def test_work_on_a_long_conversation_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with LongConversationFixture(tmp_path) as core:
        await core.fill()
        ref, choice = await core.at(CLI), core.choices[0]
        with steps(monkeypatch) as answer:
            await core.preparer.prepare(ref, choice, core.tools)
            # Let the last step of the preparation end.
            await asyncio.sleep(0)
        with steps(monkeypatch) as review:
            core.reviewer.wake()
            await until(lambda: not core.reviewer.busy, "the review never ends")
        assert len(core.model.requests) == 1
        with steps(monkeypatch) as compression:
            fill = ContextFill(1_000, 2_000_000, 240_000, context_tokens=70_000)
            core.compressor.consider(ref, fill, choice, core.heard.append)
            await until(lambda: not core.compressor.busy, "the summary is never made")
        assert any(isinstance(event, Compressed) for event in core.heard)
        for what, took in {"an answer": answer, "a review": review, "a compression": compression}.items():
            assert max(took)[0] < HELD_S_MAX, (what, max(took))


# --- Slices ----------------------------------------------------------------------------------------------------------


def turn(number: int, *texts: str) -> Turn:
    messages = tuple(Message(Role.USER, text) for text in texts)
    return Turn("s", number, f"t{number}", TurnStatus.DONE, 0.0, messages)


async def others_served(turns: list[Turn]) -> int:
    """Count the steps of another task while the turns are processed."""
    served = 0

    async def wait() -> None:
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(wait())
    done = await in_slices(lambda turn: turn.number, turns)
    waiting.cancel()
    assert done == [turn.number for turn in turns]
    return served


async def test_a_short_list_is_processed_without_a_pause() -> None:
    assert await others_served([turn(n, "x") for n in range(slices.MESSAGES_MAX)]) == 0
    assert await others_served([]) == 0


async def test_other_tasks_run_between_slices() -> None:
    assert await others_served([turn(n, "x") for n in range(3 * slices.MESSAGES_MAX + 1)]) == 3
    assert await others_served([turn(n, "x" * slices.CHARS_MAX) for n in range(3)]) == 2
