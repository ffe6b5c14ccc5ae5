"""Titles come after the answer, and whatever becomes of them the answer stands."""

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
    """A house whose sessions get titles from a model of their own."""

    def __init__(self, folder: Path, names: Callable[[], ModelChoice | None]) -> None:
        super().__init__(folder, FakeModel(["fine"]), names=names)


async def title(core: AgentFixture, session_id: str) -> str | None:
    return (await core.session(session_id)).title


async def test_a_model_that_is_slow_to_name_a_conversation_delays_no_answer(tmp_path: Path) -> None:
    slow = FakeModel(["A walk in the woods"], pause_s=0.3)
    async with TitledFixture(tmp_path, slow.choice) as core:
        began = time.monotonic()
        ended = await core.ask("where do we go?")
        assert time.monotonic() - began < 1.0
        assert (ended.text, ended.problem, ended.committed.status) == ("fine", "", TurnStatus.DONE)
        session_id = ended.committed.ref.session_id
        assert await title(core, session_id) is None, "it is still being thought of"
        assert len(await core.turns(session_id)) == 1, "the answer is stored by then"
        assert (await core.ask("and then?")).text == "fine", "nor is the next one held up"
        for _ in range(400):
            if await title(core, session_id):
                break
            await asyncio.sleep(0.01)
        assert await title(core, session_id) == "A walk in the woods"


@pytest.mark.parametrize("error", [ModelUnavailable("down"), RuntimeError("a bug"), MemoryError()])
async def test_a_title_that_can_not_be_had_is_no_concern_of_the_answers(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with TitledFixture(tmp_path, FakeModel([error]).choice) as core:
        ended = await core.ask("where do we go?")
        assert (ended.text, ended.problem, ended.committed.status) == ("fine", "", TurnStatus.DONE)
        await until(lambda: not core.titler.busy)
        gc.collect()
        assert (await core.ask("and then?")).text == "fine"
        assert await title(core, ended.committed.ref.session_id) is None
    # What asyncio itself has to report goes to the terminal.
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_model_that_is_not_there_at_all_is_no_concern_of_the_answers(
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
