"""Kill -9 under load: fifty people write all the time, and the gateway dies again and again."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from tests.faults.outcome import Outcome
from tests.faults.scene import Scene

CHATS = 50
SLOW_MODEL = ("--delay-ms=40", "--chunks=3")
SLOWER_MODEL = ("--delay-ms=300", "--chunks=6")
FATE_OF = """
SELECT replies.state FROM messages JOIN turns ON turns.id = messages.id / 4096
JOIN replies ON replies.turn_id = turns.turn_id WHERE messages.role = 'user' AND messages.content = ?
"""


async def killed_under_load(
    folder: Path, times: int, *, repeats: bool = False, edits: bool = False, chats: int = CHATS, seed: int = 1
) -> Outcome:
    """`repeats`: a message that is sent twice is seen twice, so what may be out is marked and not sent again.

    `edits`: answers take long, and are shown while they are written.
    """
    outcome, dice = Outcome(times), random.Random(seed)
    said: list[tuple[str, str]] = []
    talking = True

    async def talk(chat: str, scene: Scene) -> None:
        count = 0
        while talking:
            burst = [(chat, f"{chat} message {count + n}") for n in range(dice.choice((1, 1, 2)))]
            count += len(burst)
            said.extend(burst)
            await scene.people.say_all(burst)
            waiting = time.monotonic() + 3.0
            while talking and time.monotonic() < waiting and len(scene.people.answers(chat)) < count:
                await asyncio.sleep(0.05)
            await asyncio.sleep(dice.random() * 0.5)

    async def watch(scene: Scene) -> None:
        while True:
            await scene.people.look(1.0)

    async with Scene(folder, model=SLOWER_MODEL if edits else SLOW_MODEL, repeats=repeats) as scene:
        life = await scene.start(edits=edits)
        watching = asyncio.ensure_future(watch(scene))
        people = [asyncio.ensure_future(talk(f"c{number}", scene)) for number in range(chats)]
        began = time.monotonic()
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.1, 2.5 if edits else 1.2))
            life.kill()
            life = scene.begin(edits=edits)
            # Now and then it dies before it serves, or while it takes up what was left.
            if dice.random() < 0.8:
                await life.serves()
        outcome.counts["seconds"] = round(time.monotonic() - began, 1)
        if life.process.poll() is None:
            life.kill()
        talking = False
        await asyncio.gather(*people)
        await scene.start(edits=edits)
        await scene.rest(120.0)
        watching.cancel()
        await asyncio.wait({watching})
        await scene.people.look()
        outcome.counts["messages"] = len(said)
        problems, outcome.problems = outcome.problems, []
        missing = outcome.answered_once(scene, said)
        if repeats:
            marked = [text for text in missing if scene.rows(FATE_OF, text) == [("ambiguous",)]]
            outcome.counts["unanswered, marked and shown"] = len(marked)
            outcome.counts["unanswered"] -= len(marked)
            outcome.problems = [one for one in outcome.problems if " unanswered: " not in one]
            outcome.expect(len(marked) == len(missing), f"not marked: {sorted({*missing} - {*marked})[:5]}")
            incidents = scene.rows("SELECT COUNT(*) FROM incidents WHERE source = 'delivery'")[0][0]
            outcome.expect(incidents >= len(marked), f"{incidents} incidents for {len(marked)} marked replies")
        outcome.problems += problems
        outcome.told_once(scene, [text for _, text in said])
        outcome.expect(
            scene.rows("SELECT COUNT(*) FROM turns WHERE status <> 'done'")[0][0] == 0, "a turn was not finished"
        )
    return outcome
