"""Faults of the network and of the platform itself: check the outcome of each message."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from everthread.testing.loopback.protocol import Fault
from tests.faults.fixture import PlatformKind, Scene
from tests.faults.result import Outcome

CUT_S = 60.0


async def waiting_at_the_start(folder: Path, times: int, *, platform: PlatformKind = "loop") -> Outcome:
    """Start a gateway with two waiting messages per user: the first start, one after a shutdown, one after a kill."""
    outcome, said = Outcome(times), list[tuple[str, str]]()
    async with Scene(folder, platform=platform) as scene:
        for number in range(3):
            waiting = [(f"c{n}", f"start {number} chat {n} {word}") for n in range(times) for word in ("one", "two")]
            await scene.people.say_all(waiting)
            assert await scene.waiting() == len(waiting), "a gateway is already listening"
            said += waiting
            life = await scene.start()
            await scene.all_taken()
            await scene.rest()
            if number == 0:
                await life.end()
            else:
                life.kill()
        await scene.people.refresh()
        _all_answered(outcome, scene, said)
    return outcome


async def told_to_wait(
    folder: Path, times: int, *, platform: PlatformKind = "loop", seconds: float = 1.0, per_chat: int = 6
) -> Outcome:
    """Answer reads and sends with many 429 while users write, in addition to the platform's own limits."""
    outcome = Outcome(times)
    said = [(f"c{n}", f"storm {word} chat {n}") for word in range(per_chat) for n in range(times)]
    async with Scene(folder, platform=platform, limits=True) as scene:
        await scene.start()
        for some in (said[: len(said) // 2], said[len(said) // 2 :]):
            await scene.people.fault(Fault("busy", "poll", times=3, seconds=seconds))
            await scene.people.fault(Fault("busy", "send", times=2 * times, seconds=seconds))
            await scene.people.say_all(some)
            await asyncio.sleep(5 * seconds)
        await scene.all_taken()
        await scene.rest(300.0)
        await scene.people.refresh()
        _all_answered(outcome, scene, said)
        outcome.counts["sends told to wait"] = waits = scene.told_to_wait()
        outcome.expect(waits >= 4 * times, f"{waits} sends were told to wait: that was no storm")
    return outcome


async def cut_off(folder: Path, times: int, *, platform: PlatformKind = "loop", seconds: float = CUT_S) -> Outcome:
    """Cut the network while answers are being sent. Users keep writing during the cut and after it."""
    outcome, said = Outcome(times), list[tuple[str, str]]()
    async with Scene(folder, platform=platform, model=["--delay-ms=100"], repeats=True, cable=True) as scene:
        await scene.start()

        async def write(word: str) -> None:
            some = [(f"c{n}", f"{word} the cut, chat {n}") for n in range(times)]
            said.extend(some)
            await scene.people.say_all(some)

        await write("long before")
        for chat, text in said:
            await scene.answered(chat, text)
        await write("right before")
        await scene.people.until(lambda: len(scene.people.log) > 3 * times, "some of the answers", 30)
        cut = asyncio.ensure_future(scene.cut(seconds))
        await asyncio.sleep(seconds / 2)
        await write("during")
        await cut
        healed = time.monotonic()
        await write("after")
        await scene.all_taken(120.0)
        outcome.counts["listens again after, s"] = round(time.monotonic() - healed, 1)
        await scene.rest(300.0)
        await scene.people.refresh()
        _answered_or_marked(outcome, scene, said)
    return outcome


async def answer_lost(folder: Path, times: int, *, platform: PlatformKind = "loop") -> Outcome:
    """Break the connection during a send: half of the messages are shown, half are not, and the sender cannot tell."""
    outcome = Outcome(times)
    said = [(f"c{n}", f"message {word} chat {n}") for word in range(3) for n in range(times)]
    async with Scene(folder, platform=platform, repeats=platform != "loop") as scene:
        await scene.start()
        for chat in dict.fromkeys(chat for chat, _ in said):
            kind = "drop_after" if int(chat[1:]) % 2 == 0 else "drop_before"
            await scene.people.fault(Fault(kind, "send", chat=chat))
        await scene.people.say_all(said)
        await scene.all_taken()
        await scene.rest()
        await scene.people.refresh()
        marked = _answered_or_marked(outcome, scene, said)
        outcome.expect(marked == 0, f"{marked} replies are marked, and could have been looked for, or repeated")
        if platform != "loop":
            back = outcome.counts["there after all, and the second taken back"]
            found = outcome.counts["found to be out"] + back
            again = outcome.counts["not out, and sent again"] - back
            halves = (times + 1) // 2, times // 2
            outcome.expect((found, again) == halves, f"{found} were found and {again} sent again, not {halves}")
    return outcome


def _all_answered(outcome: Outcome, scene: Scene, said: list[tuple[str, str]]) -> None:
    outcome.counts["messages"] = len(said)
    outcome.answered_once(scene, said)
    outcome.told_once(scene, [text for _, text in said])
    marked = len(scene.marked())
    outcome.expect(marked == 0, f"{marked} replies are marked as uncertain")


def _answered_or_marked(outcome: Outcome, scene: Scene, said: list[tuple[str, str]]) -> int:
    """Check the answers. Return the number of marked replies."""
    outcome.counts["messages"] = len(said)
    outcome.answered_once_or_marked(scene, said)
    outcome.told_once(scene, [text for _, text in said])
    return len(scene.marked())
