"""Turns that a living process holds: it must not keep from others what it can't go on with, nor go on with it twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent_runtime import AgentHouse
from tests.fake_model import FakeModel
from tests.runtime import CLI, PATIENCE_S, until

from everthread.agent import turn_state as giving_back
from everthread.domain.backoff import Backoff
from everthread.domain.errors import DiskFull


async def test_a_turn_that_can_not_even_be_given_back_is_given_back_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving_back, "BACKOFF", Backoff(0.01, 60.0))
    async with AgentHouse(tmp_path, FakeModel(["lost", "found"])) as house:
        tried = 0

        async def full(*args: Any, **more: Any) -> Any:
            nonlocal tried
            tried += 1
            raise DiskFull("no room")

        with monkeypatch.context() as patch:
            patch.setattr(house.lifecycle, "commit_turn", full)
            patch.setattr(house.lifecycle, "abandon_turn", full)
            with pytest.raises(DiskFull):
                await house.ask("hello")
            await until(lambda: tried > 4)
            assert await house.lifecycle.recover() == ()
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while not (named := await house.lifecycle.recover()):
            assert asyncio.get_running_loop().time() < deadline, "the process keeps a turn that it does not go on with"
            await asyncio.sleep(0.01)
        ended = await house.agent.go_on(named[0], house.manner())
        assert ended is not None
        assert ended.text == "found"
        await house.agent.aclose()


async def test_a_process_that_slept_does_not_take_over_what_it_runs_itself(tmp_path: Path) -> None:
    async with AgentHouse(tmp_path, FakeModel(["slow and sure"], pause_s=0.05)) as house:
        await house.say("hello")
        turn = asyncio.ensure_future(house.agent.answer(CLI, house.manner()))
        await until(lambda: house.model.requests)
        await house.later(3600)
        (turn_id,) = await house.lifecycle.recover()
        assert await house.agent.go_on(turn_id, house.manner()) is None
        ended = await turn
        assert ended is not None
        assert ended.text == "slow and sure"
        assert len(house.model.requests) == 1
