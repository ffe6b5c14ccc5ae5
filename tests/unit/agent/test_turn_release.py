"""A living process releases the turns that it cannot finish."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentFixture
from tests.fake_model import FakeModel
from tests.runtime import PATIENCE_S, until

from everthread.agent import turn_release
from everthread.domain.backoff import Backoff
from everthread.domain.errors import DiskFull


async def test_a_turn_that_cannot_be_released_is_released_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_release, "RETRY", Backoff(0.01, 60.0))
    async with AgentFixture(tmp_path, FakeModel(["lost", "found"])) as core:
        tried = 0

        async def full(*args: Any, **more: Any) -> Any:
            nonlocal tried
            tried += 1
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(core.lifecycle, "commit_turn", full)
            patch.setattr(core.lifecycle, "abandon_turn", full)
            with pytest.raises(DiskFull):
                await core.ask("hello")
            await until(lambda: tried > 4)
            assert await core.lifecycle.recover() == ()
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not (named := await core.lifecycle.recover()):
            assert asyncio.get_running_loop().time() < deadline, "the process holds a turn that it does not continue"
            await asyncio.sleep(0.01)
        ended = await core.agent.resume(named[0], core.options())
        assert ended is not None
        assert ended.text == "found"
        await core.agent.aclose()
