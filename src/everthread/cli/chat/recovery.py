"""Recover the turns and messages that dead terminals of this owner left behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from everthread.agent.events import TurnEnded
from everthread.agent.inbox_worker import InboxWorker
from everthread.cli.chat.session import TurnStopper, is_same_front_end
from everthread.cli.context import CliRuntime
from everthread.domain.errors import Busy, EverthreadError
from everthread.domain.model import SUBAGENT_PLATFORM, SessionKey, SessionRef
from everthread.store.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from everthread.agent.model_call import ModelChoice
    from everthread.agent.turn_options import TurnOptions

RECOVER_S = 5.0


class Recovery:
    """Polls for unfinished work of dead terminals. Other front ends recover their own."""

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
        self._inbox = InboxWorker(runtime.store, runtime.lifecycle, runtime.clock)
        self._stopper = TurnStopper(runtime)
        self.stop = self._stopper.stop

    @property
    def busy(self) -> bool:
        return self._stopper.running

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except EverthreadError as error:
                self._failed(f"Could not finish interrupted answers; retrying: {error}")
            # A killed process counts as dead only after its lease has expired.
            await self._runtime.clock.sleep(RECOVER_S)

    async def once(self) -> None:
        agent = self._runtime.agent
        for slot in await self._inbox.find_cut_off(self._is_mine, self._is_settled_here):
            await self._finish(lambda options, turn_id=slot.turn_id: agent.resume(turn_id, options))
        for key in await self._stranded_keys():
            while await self._finish(lambda options, key=key: agent.answer(key, options)):
                pass

    async def _finish(self, run: Callable[[TurnOptions], Awaitable[TurnEnded | None]]) -> bool:
        from everthread.agent.turn_options import TurnOptions

        self._stopper.begin()
        try:
            ended = await run(TurnOptions(self._choices(), self._stopper.handle))
        except Busy:
            # Another turn runs in that session; the next poll tries again.
            return False
        finally:
            self._stopper.end()
        if ended is not None:
            await self._finished(ended)
        return ended is not None

    def _is_mine(self, ref: SessionRef) -> bool:
        return ref.owner == self._owner and is_same_front_end(ref.key, self._key)

    def _is_settled_here(self, ref: SessionRef) -> bool:
        """Also settle delegated work: only the parent turn resumes it."""
        return self._is_mine(ref) or (ref.key.platform == SUBAGENT_PLATFORM and ref.owner == self._owner)

    async def _stranded_keys(self) -> Sequence[SessionKey]:
        """Find keys of dead terminals where a message of this owner waits."""
        now = self._runtime.clock.now()

        def find(uow: UnitOfWork) -> list[SessionKey]:
            keys = [key for key in uow.inbox.keys_waiting() if is_same_front_end(key, self._key)]
            dead = [key for key in keys if key != self._key and not uow.leases.is_alive(key.chat, now)]
            return [key for key in dead if (row := uow.inbox.first_waiting(key)) and row.inbound.owner == self._owner]

        return await self._runtime.store.read_inline(find)
