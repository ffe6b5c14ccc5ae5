"""A turn while it runs: what it has come to, and how it is stopped.

Giving back turns that failed while the store could not be written: later, and for as long as it takes.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct, field

from everthread.agent.model_call import ModelChoice, Progress
from everthread.agent.prompt_cache import Prepared
from everthread.domain.backoff import Backoff
from everthread.domain.errors import Fenced, StoreError, TurnTooLong
from everthread.lifecycle import TURN_CHARS_MAX, Lifecycle, TurnClaim
from everthread.ports.clock import Clock

MESSAGES_MAX = 1_000


class Running(Struct):
    ticket: TurnClaim
    progress: Progress
    work: asyncio.Task[str] | None = None
    stopped: str = ""
    """Why it was stopped, if it was."""
    stopping: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once it is to be stopped."""
    steering: list[int] = field(default_factory=list[int])
    taking_up: asyncio.Task[None] | None = None
    """The message that is becoming part of the turn, or the last that has."""
    note: str = ""
    """What the user should know about an answer that is there."""
    prepared: tuple[Prepared, ModelChoice] | None = None

    @property
    def has_steps_left(self) -> bool:
        return self.work is None or not self.work.done()

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        if not self.stopping.done():
            self.stopping.set_result(None)
        if self.work is not None:
            self.work.cancel()

    def go_on(self) -> None:
        """Raises if it was stopped, whoever swallowed that, or has become more than can be stored."""
        if self.stopped:
            raise asyncio.CancelledError
        messages = self.progress.messages
        if len(messages) > MESSAGES_MAX or sum(len(text) for m in messages for text in m.texts()) > TURN_CHARS_MAX // 2:
            raise TurnTooLong("stopped: this turn has become too large to be stored; its last steps are left out")


log = logging.getLogger("everthread.agent")

BACKOFF = Backoff(first_s=1.0, max_s=60.0)


class TurnReleaser:
    """As long as this process lives, nobody else may take its turns: one that it never gave back would never end."""

    def __init__(self, lifecycle: Lifecycle, clock: Clock) -> None:
        self._lifecycle = lifecycle
        self._clock = clock
        self._going: set[asyncio.Task[None]] = set()

    def later(self, ticket: TurnClaim) -> None:
        """Nothing is waited for."""
        task = asyncio.ensure_future(self._until_given_back(ticket))
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _until_given_back(self, ticket: TurnClaim) -> None:
        for delay_s in BACKOFF.delays():
            await self._clock.sleep(delay_s)
            try:
                await self._lifecycle.abandon_turn(ticket)
            except Fenced:
                return
            except StoreError as error:
                log.warning("turn %s can't be given back yet: %s", ticket.turn_id, error)
            else:
                return

    async def aclose(self) -> None:
        """Once this process is gone, others take up what is left."""
        for task in self._going:
            task.cancel()
        if self._going:
            await asyncio.wait(self._going)
