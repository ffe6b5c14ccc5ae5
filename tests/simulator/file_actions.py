"""Actions of a schedule on the files of the home directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from everthread.domain.model import NoteTarget
from tests.simulator.coverage import CRASH_AFTER, CRASH_BEFORE
from tests.simulator.environment import Faults
from tests.simulator.event_loop import SimLoop
from tests.simulator.home import MINE, Home
from tests.simulator.process import Server
from tests.simulator.reference_model import ReferenceModel

OWNERS = ("ann", "bob")


class FileActions:
    """Part of a simulation: one method for each action, named after it."""

    loop: SimLoop
    faults: Faults
    reference: ReferenceModel
    home: Home | None
    _servers: list[Server]

    def _choose_word(self) -> str:
        raise NotImplementedError

    async def _on(self, dice: random.Random, work: Callable[[Server], Awaitable[None]]) -> bool:
        raise NotImplementedError

    async def _restart(self, dice: random.Random) -> None:
        raise NotImplementedError

    async def _inject_edit_notes(self, dice: random.Random) -> None:
        """Edit a note file by hand; sometimes save it long after it was opened."""
        home, owner, target = self._home(), dice.choice(OWNERS), dice.choice(tuple(NoteTarget))
        opened = home.read(owner, target)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.random() * 8.0)
            self.faults.hit["note file saved late"] += 1
        kind = home.edit(owner, target, dice, self._choose_word(), opened, self.loop.time())
        self.faults.hit[f"note file: {kind}"] += 1
        if dice.random() < 0.7:
            # Both processes notice the edit.
            await asyncio.gather(self._synchronise(dice, owner), self._synchronise(dice, owner))

    async def _inject_sync_notes(self, dice: random.Random) -> None:
        await self._synchronise(dice, dice.choice(OWNERS))

    async def _inject_kill_sync(self, dice: random.Random) -> None:
        """Kill the next process that synchronises note files, before or after its commit."""
        alive = [server for server in self._servers if not server.dead]
        self.faults.deaths.append(f"{dice.choice((CRASH_BEFORE, CRASH_AFTER))} of files")
        while not any(server.dead for server in alive) and self.loop.time() < 300.0:
            await asyncio.sleep(1.0)
        await self._restart(dice)

    async def _inject_draft(self, dice: random.Random) -> None:
        self._home().leave_draft(dice.choice(OWNERS), dice.choice(tuple(NoteTarget)))
        self.faults.hit["draft left behind"] += 1

    async def _inject_skill(self, dice: random.Random) -> None:
        """Write a fact into a skill, which belongs to the owner of the home."""
        facts = [text for whose, text, _ in self.reference.words.notes.values() if whose == MINE]
        if facts:
            self._home().write_skill(dice.choice(facts))
            self.faults.hit["skill with a fact"] += 1

    async def _synchronise(self, dice: random.Random, owner: str) -> None:
        async def synchronise(server: Server) -> None:
            await server.sync_notes(owner)

        await self._on(dice, synchronise)

    def _home(self) -> Home:
        assert self.home is not None
        return self.home
