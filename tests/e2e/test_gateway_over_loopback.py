"""The gateway over a platform in another process: what a broken connection makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.fixture import Scene, answer_to

from everthread.testing.loopback import protocol as wire

pytestmark = pytest.mark.timeout(90)

WORDS = "one two three four five six"


async def test_the_beginning_of_an_answer_that_nobody_knows_to_be_out_is_finished(tmp_path: Path) -> None:
    async with Scene(tmp_path / "scene", model=["--delay-ms=300", "--chunks=8"]) as scene:
        await scene.start(edits=True)
        await scene.people.fault(wire.Fault("drop_after", "send"))
        await scene.people.say("c1", WORDS)
        await scene.people.until(lambda: scene.people.texts("c1") == [answer_to(WORDS)], "the whole answer")
        first = scene.people.answers("c1")[0]
        assert first.text.endswith("…"), "otherwise this is no test"


async def test_a_platform_that_is_down_for_a_while_loses_nothing(tmp_path: Path) -> None:
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


async def test_updates_come_again_until_they_are_stored(tmp_path: Path) -> None:
    async with Scene(tmp_path / "scene") as scene:
        await scene.people.fault(wire.Fault("drop_after", "poll", times=1))
        await scene.people.say_all([(f"c{number}", f"hello {number}") for number in range(5)])
        await scene.start()
        for number in range(5):
            await scene.answered(f"c{number}", f"hello {number}")
        await scene.rest()
        await scene.people.refresh()
        assert [len(scene.people.answers(f"c{number}")) for number in range(5)] == [1] * 5
