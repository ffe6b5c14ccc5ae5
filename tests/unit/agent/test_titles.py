"""Session titles are generated after the answer and never affect it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import until

from everthread.agent.model_call import ModelChoice
from everthread.domain.errors import ModelUnavailable
from everthread.domain.model import TurnStatus


class TitledFixture(AgentFixture):
    """Agent whose sessions get titles from a separate model."""

    def __init__(self, folder: Path, names: Callable[[], ModelChoice | None]) -> None:
        super().__init__(folder, FakeModel(["fine"]), names=names)


async def title(core: AgentFixture, session_id: str) -> str | None:
    return (await core.session(session_id)).title


async def test_a_slow_title_model_delays_no_answer(tmp_path: Path) -> None:
    slow = FakeModel(["A walk in the woods"], pause_s=0.3)
    async with TitledFixture(tmp_path, slow.choice) as core:
        began = time.monotonic()
        ended = await core.ask("where do we go?")
        assert time.monotonic() - began < 1.0
        assert (ended.text, ended.problem, ended.committed.status) == ("fine", "", TurnStatus.DONE)
        session_id = ended.committed.ref.session_id
        assert await title(core, session_id) is None, "the title is still being generated"
        assert len(await core.turns(session_id)) == 1, "the answer is stored already"
        assert (await core.ask("and then?")).text == "fine", "the next answer is not delayed"
        for _ in range(400):
            if await title(core, session_id):
                break
            await asyncio.sleep(0.01)
        assert await title(core, session_id) == "A walk in the woods"


@pytest.mark.parametrize("error", [ModelUnavailable("down"), RuntimeError("a bug"), MemoryError()])
async def test_a_failed_title_does_not_affect_the_answer(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with TitledFixture(tmp_path, FakeModel([error]).choice) as core:
        ended = await core.ask("where do we go?")
        assert (ended.text, ended.problem, ended.committed.status) == ("fine", "", TurnStatus.DONE)
        await until(lambda: not core.titler.busy)
        gc.collect()
        assert (await core.ask("and then?")).text == "fine"
        assert await title(core, ended.committed.ref.session_id) is None
    # Unhandled errors of asyncio are printed to the terminal.
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_missing_title_model_does_not_affect_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody() -> ModelChoice | None:
        raise LookupError("no such model")

    with caplog.at_level(logging.INFO):
        async with TitledFixture(tmp_path, nobody) as core:
            assert (await core.ask("where do we go?")).text == "fine"
            await until(lambda: not core.titler.busy)
            gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
