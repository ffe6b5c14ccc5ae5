"""Kill -9 under load: fifty users write continuously, and the gateway is killed repeatedly."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.fixture import PlatformKind, Scene, answer_to
from tests.faults.result import Outcome

CHATS = 50
SLOW_MODEL = ("--delay-ms=40", "--chunks=3")
SLOWER_MODEL = ("--delay-ms=300", "--chunks=6")
GIVEN_UP = "given up: it was begun several times"


class Load:
    """Users who write continuously and record the answers."""

    def __init__(self, scene: Scene, chats: int, dice: random.Random) -> None:
        self.said: list[tuple[str, str]] = []
        self._scene = scene
        self._dice = dice
        self._over = False
        self._news = asyncio.Event()
        self._talking = [asyncio.ensure_future(self._talk(f"c{number}")) for number in range(chats)]
        self._watching = asyncio.ensure_future(self._watch())

    async def fall_silent(self) -> None:
        self._over = True
        await asyncio.gather(*self._talking)

    async def look_away(self) -> None:
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._scene.people.refresh()

    async def _talk(self, chat: str) -> None:
        count = 0
        while not self._over:
            burst = [(chat, f"{chat} message {count + n}") for n in range(self._dice.choice((1, 1, 2)))]
            count += len(burst)
            self.said.extend(burst)
            await self._scene.people.say_all(burst)
            for _ in range(1200):
                if self._over or len(self._scene.people.answers(chat)) >= count:
                    break
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._dice.random() * 0.5)

    async def _watch(self) -> None:
        seen = self._scene.people.log
        while True:
            known = len(seen)
            await self._scene.people.refresh(1.0)
            if any(one.what != "said" for one in seen[known:]):
                self._news.set()
                self._news.clear()

    async def until_the_next_answer(self) -> None:
        """Return while the sending gateway may not have recorded the send yet."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), 2.0)


async def killed_under_load(
    folder: Path,
    times: int,
    *,
    platform: PlatformKind = "loop",
    repeats: bool = False,
    edits: bool = False,
    chats: int = CHATS,
    life_s_max: float = 2.5,
    seed: int = 1,
) -> Outcome:
    """Kill the gateway repeatedly while users write.

    `repeats`: the platform shows a repeated send twice, as Telegram always does, so uncertain replies are marked and
    not sent again.

    `edits`: answers take long and are shown while they are generated.
    """
    outcome, dice = Outcome(times), random.Random(seed)
    model = SLOWER_MODEL if edits else SLOW_MODEL
    async with Scene(folder, platform=platform, model=model, repeats=repeats) as scene:
        life = await scene.start(edits=edits)
        load = Load(scene, chats, dice)
        began = time.monotonic()
        for _ in range(times):
            await asyncio.sleep(dice.uniform(0.1, life_s_max))
            if dice.random() < 0.5:
                await load.until_the_next_answer()
            life.kill()
            life = scene.begin(edits=edits)
            # Sometimes it is killed before it serves, or during recovery.
            if dice.random() < 0.8:
                await life.serves()
        outcome.counts["seconds"] = round(time.monotonic() - began, 1)
        await load.fall_silent()
        life.kill()
        await scene.start(edits=edits)
        await scene.all_taken(120.0)
        await scene.rest(300.0)
        await load.look_away()
        outcome.counts["messages"] = len(load.said)
        outcome.answered_once_or_marked(scene, load.said)
        if edits:
            # A process killed before it recorded the message id of a partial answer cannot continue that message.
            wholes = {answer_to(text) for _, text in load.said}
            shown = [text for chat in scene.people.chats() for text in scene.people.texts(chat) if text not in wholes]
            outcome.counts["beginnings left behind"] = len(shown)
            if platform != "loop":
                outcome.counts["beginnings found"] = scene.logged("found the beginning of an answer")
                outcome.expect(not shown, f"{len(shown)} beginnings are left: {shown[:3]}")
        # A turn that was started many times is assumed to kill the process, and its sender is told.
        given_up = [one for one in scene.people.log if GIVEN_UP in one.text]
        outcome.counts["given up, and said so"] = len(given_up)
        outcome.told_once(scene, [text for _, text in load.said])
        unfinished = scene.rows("SELECT COUNT(*) FROM turns WHERE status <> 'done'")[0][0]
        outcome.expect(unfinished == 0, f"{unfinished} turns were not finished")
    return outcome
