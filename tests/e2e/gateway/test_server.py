"""The gateway as a whole: a message in, a reply out, and the shutdown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.fake_platform import FakePlatform
from tests.faults.fixture import Scene
from tests.gateway import gateway_fixture
from tests.runtime import until

from everthread.domain.model import TurnStatus
from everthread.testing.loopback import protocol as wire
from everthread.testing.model_server.replies import End, Say
from everthread.testing.model_server.server import ModelServer


async def test_a_message_is_answered_where_it_was_written(tmp_path: Path) -> None:
    async with ModelServer(lambda _: Say("Hello Anna.")) as model, gateway_fixture(tmp_path, model) as fixture:
        fixture.platform.say("hello")
        await until(lambda: fixture.platform.texts() == ["Hello Anna."])
        await fixture.rest()
        (turn,) = await fixture.turns()
        assert (turn.user_text, turn.assistant_text, turn.status) == ("hello", "Hello Anna.", TurnStatus.DONE)


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
async def test_a_clock_jump_does_not_change_the_drain_time(tmp_path: Path, ahead_s: float) -> None:
    replies = iter([Say("slowly " * 10, chunks=10, delay_s=0.1), Say("never", end=End.STALL)])
    platform = FakePlatform()
    async with ModelServer(lambda _: next(replies)) as model:
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
            platform.say("tell me")
            await until(lambda: fixture.gateway.worker.running)
            ending = asyncio.ensure_future(fixture.gateway.stop(5.0))
            await asyncio.sleep(0.1)
            fixture.clock.ahead_s += ahead_s
            await ending
            assert len(platform.texts()) == 1, "the running answer must be sent before the stop"
        async with gateway_fixture(tmp_path, model, platform, drain_s=0.0) as fixture:
            platform.say("and then?")
            await until(lambda: fixture.gateway.worker.running)
            ending, began = asyncio.ensure_future(fixture.gateway.stop(0.5)), time.monotonic()
            await asyncio.sleep(0.1)
            fixture.clock.ahead_s += ahead_s
            await ending
            assert time.monotonic() - began < 3.0


@pytest.mark.timeout(90)
async def test_a_platform_outage_loses_nothing(tmp_path: Path) -> None:
    async with Scene(tmp_path / "scene") as scene:
        await scene.start()
        faults = ("unavailable", "error", "drop_before", "drop_after", "busy")
        for number, kind in enumerate(faults):
            await scene.people.fault(wire.Fault(kind, "send", times=2, seconds=0.2))
            await scene.people.say(f"c{number}", f"while {kind}")
        for number, kind in enumerate(faults):
            await scene.answered(f"c{number}", f"while {kind}")
        await scene.rest()
        await scene.people.refresh()
        assert [len(scene.people.answers(f"c{number}")) for number in range(len(faults))] == [1] * len(faults)
