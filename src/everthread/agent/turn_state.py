"""The state of a running turn: its messages so far, the request to stop it, the messages that steer it."""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from everthread.agent.events import Listen, Steered
from everthread.agent.model_call import ModelChoice, Progress
from everthread.agent.prompt_cache import Prepared
from everthread.agent.transcript import rebuild_tool_messages
from everthread.agent.turn_guard import TurnGuard
from everthread.agent.turn_options import TurnLimits
from everthread.concurrency import wait_until_done
from everthread.domain.errors import TurnTooLong
from everthread.domain.model import Message, Role
from everthread.domain.rights import accounts_of
from everthread.lifecycle import TURN_CHARS_MAX, TurnClaim
from everthread.ports.memory import RecallItem

MESSAGES_MAX = 1_000
QUERY_CHARS_MAX = 2_000
"""The start of a message states its question; the rest of a long paste only blurs the recall."""
FENCE_MAX = 40
"""Each attempt to run a turn raises its fence by one or two."""


class RunningTurn(Struct):
    claim: TurnClaim
    progress: Progress
    task: asyncio.Task[str] | None = None
    """Runs the steps; its result is the answer."""
    stop_reason: str = ""
    """Empty until `stop` is called."""
    stop_requested: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    steering: list[int] = field(default_factory=list[int])
    """Inbox ids of the messages to take up before the next model call."""
    taking_up: asyncio.Task[None] | None = None
    """Adds the newest steering message to the turn."""
    note: str = ""
    """A remark for the user about a complete answer."""
    speakers: frozenset[str] = frozenset()
    """The accounts that wrote the messages of the turn; an unknown one is an empty text."""
    recalled: list[RecallItem] = field(default_factory=list[RecallItem])
    """The memories that the turn was shown, by automatic recall and by tools."""
    prepared: tuple[Prepared, ModelChoice] | None = None
    """The start of the turn's requests, and the model it was encoded for."""

    @classmethod
    def start(cls, claim: TurnClaim) -> RunningTurn:
        """Begin with the user's messages and, after a crash, the results of the tools that have run."""
        first, *steered = (Message(Role.USER, text) for text in claim.texts)
        speakers = accounts_of(claim.message.inbound).union(*(accounts_of(row.inbound) for row in claim.steered))
        return cls(claim, Progress([first, *rebuild_tool_messages(claim.tools), *steered]), speakers=speakers)

    @property
    def query(self) -> str:
        """The question to recall memory for."""
        return self.claim.message.inbound.text[:QUERY_CHARS_MAX]

    @property
    def has_steps_left(self) -> bool:
        return self.task is None or not self.task.done()

    def stop(self, reason: str) -> None:
        """Cancel the steps. The first reason counts."""
        self.stop_reason = self.stop_reason or reason
        if not self.stop_requested.done():
            self.stop_requested.set_result(None)
        self.cancel_steps()

    def cancel_steps(self) -> None:
        """Cancel the steps, once: a second cancellation would interrupt the end of the call in flight."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def check_limits(self, step: int, limits: TurnLimits) -> None:
        """Raise if the turn must end before its next model call, `step` calls having been made."""
        if self.stop_reason:
            # A tool may have swallowed the cancellation.
            raise asyncio.CancelledError
        if self.claim.fence > FENCE_MAX:
            raise TurnTooLong("given up: the turn was started several times and never finished")
        messages = self.progress.messages
        if len(messages) > MESSAGES_MAX or sum(len(text) for m in messages for text in m.texts()) > TURN_CHARS_MAX // 2:
            raise TurnTooLong("stopped: the turn is too large to be stored; its last steps are left out")
        if step >= limits.iterations:
            raise TurnTooLong(f"stopped after {step} steps, the limit of a turn ({limits.section}.iterations)")


async def take_steering(turn: RunningTurn, guard: TurnGuard, listen: Listen) -> None:
    """Add the steering messages to the turn. A message that no longer waits is skipped."""

    async def take_up(inbox_id: int) -> None:
        row = await guard.permit(lambda: guard.lifecycle.steer(turn.claim, inbox_id))
        if row is not None:
            turn.speakers |= accounts_of(row.inbound)
            turn.progress.messages.append(Message(Role.USER, row.inbound.text))
            listen(Steered(row.inbound.text, row.id))

    while turn.steering:
        # A message that the store counts as part of the turn must be in it, even if the turn is stopped meanwhile.
        turn.taking_up = asyncio.ensure_future(take_up(turn.steering.pop(0)))
        cancelled = await wait_until_done(turn.taking_up)
        turn.taking_up.result()
        if cancelled is not None:
            raise cancelled
