"""Finishing what earlier processes at this person's terminals left behind: answers cut off, messages never taken up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from everthread.agent.events import TurnBegan, TurnEnded, TurnEvent
from everthread.cli.context import CliRuntime
from everthread.domain.errors import Busy, EverthreadError
from everthread.domain.model import HANDED_OVER, Fate, SessionKey, SessionRef, Slot
from everthread.domain.text_format import excerpt
from everthread.store.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from everthread.agent.model_call import ModelChoice
    from everthread.agent.turn import TurnOptions

RECOVER_S = 5.0


class Recovery:
    """Looks, now and then, for what a terminal that is gone had begun. Other platforms are answered where they are."""

    def __init__(
        self,
        runtime: CliRuntime,
        key: SessionKey,
        choices: Callable[[], Sequence[ModelChoice]],
        finished: Callable[[TurnEnded], Awaitable[None]],
        failed: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._key = key
        self._owner = runtime.settings.owner
        self._choices = choices
        self._finished = finished
        self._failed = failed
        self._running: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def stop(self) -> None:
        for session_id in self._running:
            self._runtime.agent.stop(session_id)

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except EverthreadError as error:
                self._failed(f"What was left unfinished can't be gone on with yet: {error}")
            # A process that was killed is known to be gone only after a while.
            await self._runtime.clock.sleep(RECOVER_S)

    async def once(self) -> None:
        agent = self._runtime.agent
        for slot in await self._cut_off():
            await self._finish(lambda manner, turn_id=slot.turn_id: agent.go_on(turn_id, manner))
        for key in await self._stranded():
            while await self._finish(lambda manner, key=key: agent.answer(key, manner)):
                pass

    async def _finish(self, work: Callable[[TurnOptions], Awaitable[TurnEnded | None]]) -> bool:
        from everthread.agent.turn import TurnOptions

        try:
            ended = await work(TurnOptions(self._choices(), self._hear))
        except Busy:
            # Somebody is answered there now; it is looked at again.
            return False
        finally:
            self._running.clear()
        if ended is not None:
            await self._finished(ended)
        return ended is not None

    def _hear(self, event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            self._running.add(event.ref.session_id)

    async def _cut_off(self) -> Sequence[Slot]:
        now = self._runtime.clock.now()
        orphans = await self._runtime.store.read_inline(lambda uow: uow.slots.orphans(now))
        mine = [slot for slot in orphans if _is_mine(slot.ref, self._key, self._owner)]
        # Work that was handed over is gone on with by the answer that waits for it; if none does, it is only settled.
        theirs = any(slot.ref.key.platform == HANDED_OVER and slot.ref.owner == self._owner for slot in orphans)
        again = await self._runtime.lifecycle.recover() if mine or theirs else ()
        return [slot for slot in mine if slot.turn_id in again]

    async def _stranded(self) -> Sequence[SessionKey]:
        """Keys of terminals that are gone, where a message waits that nobody else will ever take up."""
        now = self._runtime.clock.now()

        def look(uow: UnitOfWork) -> list[SessionKey]:
            keys = [key for key in uow.inbox.keys_waiting() if _same_place(key, self._key)]
            gone = [key for key in keys if key != self._key and not uow.lanes.is_alive(key.chat, now)]
            return [key for key in gone if (row := uow.inbox.first_waiting(key)) and row.inbound.owner == self._owner]

        return await self._runtime.store.read_inline(look)


async def finish_what_is_in_the_way(
    runtime: CliRuntime, key: SessionKey, manner: TurnOptions, notice: Callable[[str], None]
) -> bool:
    """Finish the answer that a process which is gone left in the session that the key is on; whether there was one.

    Raises `Busy` if that is not for a terminal to do: it was asked for elsewhere, and is awaited there.
    """
    here, now = await runtime.lifecycle.current(key), runtime.clock.now()
    orphans = await runtime.store.read_inline(lambda uow: uow.slots.orphans(now))
    slot = next((slot for slot in orphans if here and slot.ref.session_id == here.session_id and _is_live(slot)), None)
    if slot is None:
        return False
    if not _same_place(slot.ref.key, key):
        where = slot.ref.key.platform
        raise Busy(
            f"an answer for {where} was cut off in this conversation; it is finished once {where} is served again"
        )

    from everthread.agent.turn import TurnOptions

    def hear(event: TurnEvent) -> None:
        if isinstance(event, TurnBegan):
            manner.listen(event)

    ended = await runtime.agent.go_on(slot.turn_id, TurnOptions(manner.choices, hear))
    if ended is not None:
        ref, number = ended.committed.ref, ended.committed.number
        turn = await runtime.store.read(lambda uow: uow.turns.get(ref.session_id, number))
        notice(f"Finished an answer that was cut off: {excerpt(turn.user_text if turn else '')}")
    return ended is not None


def _is_live(slot: Slot) -> bool:
    return slot.fate is Fate.LIVE


def _is_mine(ref: SessionRef, key: SessionKey, owner: str) -> bool:
    return ref.owner == owner and _same_place(ref.key, key)


def _same_place(one: SessionKey, other: SessionKey) -> bool:
    return (one.profile, one.platform) == (other.profile, other.platform)
