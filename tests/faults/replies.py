"""Faults of the platform, and users in a hurry: check the outcome of each message."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from tests.faults.fixture import PlatformKind, Scene, answer_to
from tests.faults.result import Outcome

STRANDED_S = 12.0
ROUNDS = 11


async def delivered_twice(folder: Path, times: int, *, platform: PlatformKind = "loop") -> Outcome:
    """Let the platform redeliver each update three times: during its answer, after it, and after a restart."""
    outcome = Outcome(times)
    said = [(f"c{number}", f"message {number}") for number in range(times)]
    async with Scene(folder, platform=platform, model=["--delay-ms=50"]) as scene:
        life = await scene.start()
        updates = await scene.people.say_all(said)
        for update in updates:
            await scene.people.redeliver(update)
        for chat, text in said:
            await scene.answered(chat, text)
        for update in updates:
            await scene.people.redeliver(update)
        await scene.all_taken()
        life.kill()
        await scene.start()
        for update in updates:
            await scene.people.redeliver(update)
        await scene.all_taken()
        await scene.rest()
        await scene.people.refresh()
        outcome.answered_once(scene, said)
        outcome.told_once(scene, [text for _, text in said])
        outcome.counts["messages sent"] = sum(len(scene.people.answers(chat)) for chat, _ in said)
        outcome.expect(outcome.counts["messages sent"] == times, "something else was sent as well")
    return outcome


async def right_after_a_reply(folder: Path, times: int, *, platform: PlatformKind = "loop") -> Outcome:
    """Send the next message of each chat as soon as the answer to the previous one is shown."""
    outcome = Outcome(times)
    async with Scene(folder, platform=platform) as scene:
        await scene.start()
        people = scene.people
        said = {f"c{number}": [f"c{number} message 0"] for number in range(times)}
        await people.say_all([(chat, texts[0]) for chat, texts in said.items()])
        deadline = time.monotonic() + STRANDED_S
        while any(len(people.answers(chat)) < ROUNDS for chat in said) and time.monotonic() < deadline:
            await people.refresh(1.0)
            ready = [chat for chat, texts in said.items() if len(people.answers(chat)) == len(texts) < ROUNDS]
            for chat in ready:
                said[chat].append(f"{chat} message {len(said[chat])}")
                deadline = time.monotonic() + STRANDED_S
            if ready:
                await people.say_all([(chat, said[chat][-1]) for chat in ready])
        outcome.answered_once(scene, [(chat, text) for chat, texts in said.items() for text in texts])
        waits = [wait for chat in said for wait in _waits(scene, chat)]
        outcome.counts["messages"] = sum(len(texts) for texts in said.values())
        outcome.counts["longest wait, s"] = round(max(waits), 2)
        outcome.expect(outcome.counts["messages"] == times * ROUNDS, "somebody is stranded")
        await scene.rest()
        outcome.told_once(scene, [text for texts in said.values() for text in texts])
    return outcome


async def hanging_beside(folder: Path, times: int, *, recall: bool = False, tasks: bool = False) -> Outcome:
    """Compare two gateways, one with a provider that hangs forever: answer times must be the same in both.

    `times` pairs in each of ten rounds; the interval is that of the rounds' ratios of medians.
    """
    outcome, ratios = Outcome(times), list[float]()
    waits: dict[str, list[float]] = {"well": [], "hang": []}
    async with Scene(folder / "well") as well, Scene(folder / "hang") as hung:
        hung.feel("hang")
        for scene in (well, hung):
            await scene.start(recall=recall, tasks=tasks)
        for number in range(10):
            round_waits: dict[str, list[float]] = {"well": [], "hang": []}
            for pair in range(times):
                for name, scene in random.Random(number * 1000 + pair).sample([("well", well), ("hang", hung)], 2):
                    chat, text = f"c{pair}", f"round {number} pair {pair}"
                    await scene.people.say(chat, text)
                    await scene.answered(chat, text)
                    round_waits[name].append(_waits(scene, chat)[-1])
            ratios.append(statistics.median(round_waits["hang"]) / statistics.median(round_waits["well"]))
            for name, some in round_waits.items():
                waits[name] += some
    ratios.sort()
    for name, some in waits.items():
        outcome.counts[f"{name}, median ms"] = round(statistics.median(some) * 1000, 2)
        outcome.counts[f"{name}, longest ms"] = round(max(some) * 1000, 2)
    outcome.counts["ratio"] = round(statistics.median(ratios), 3)
    # The second and the ninth of ten: a 98 % confidence interval of the median.
    outcome.counts["ratio from"], outcome.counts["ratio to"] = round(ratios[1], 3), round(ratios[-2], 3)
    outcome.expect(ratios[1] < 1.1, f"with a provider that hangs, answers take longer: {ratios}")
    return outcome


def _waits(scene: Scene, chat: str) -> list[float]:
    """Seconds from each message of a chat to its answer, by the platform's clock."""
    answered = {one.text: one.at for one in scene.people.answers(chat)}
    said = [one for one in scene.people.log if one.chat == chat and one.what == "said"]
    return [answered[answer_to(one.text)] - one.at for one in said if answer_to(one.text) in answered]
