"""A turn while it runs: what it has come to, and how it is stopped."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from everthread.agent.asking import Choice, Progress
from everthread.agent.prepared import Prepared
from everthread.domain.errors import TurnTooLong
from everthread.lifecycle import TURN_CHARS_MAX, Ticket

MESSAGES_MAX = 1_000


class Running(Struct):
    ticket: Ticket
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
    prepared: tuple[Prepared, Choice] | None = None

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
