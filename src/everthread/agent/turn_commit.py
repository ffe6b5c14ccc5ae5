"""Commit a turn, then start the background work that follows from it.

Tested in tests/unit/agent/test_turn.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from everthread.agent.compression.service import Compressor, measure_fill
from everthread.agent.events import TurnEnded
from everthread.agent.model_call import bytes_of
from everthread.agent.prompt_cache import Preparer
from everthread.agent.review import Reviewer
from everthread.agent.titles import Titler
from everthread.agent.transcript import STOPPED, add_missing_results, drop_thoughts
from everthread.agent.turn_options import TurnOptions
from everthread.agent.turn_outcome import TurnOutcome, claim_fields
from everthread.agent.turn_state import RunningTurn
from everthread.domain.errors import ContextTooLong, StoreBusy
from everthread.domain.model import Message, Role, Turn, TurnStatus
from everthread.lifecycle import CommittedTurn, Lifecycle
from everthread.memory import MemoryManager
from everthread.ports.clock import Clock
from everthread.store.recalled import RecalledItem

log = logging.getLogger("everthread.agent")

BUSY_PAUSES_S = (0.2, 1.0)

T = TypeVar("T")


async def retry_while_busy(clock: Clock, write: Callable[[], Awaitable[T]]) -> T:
    """Write to the store, and try again if another program has locked it for a moment."""
    for pause_s in BUSY_PAUSES_S:
        try:
            return await write()
        except StoreBusy:
            await clock.sleep(pause_s)
    return await write()


class TurnCommitter(Struct, frozen=True):
    lifecycle: Lifecycle
    memory: MemoryManager
    preparer: Preparer
    clock: Clock
    titler: Titler | None
    compressor: Compressor | None
    reviewer: Reviewer | None
    recalls: bool

    async def commit(self, turn: RunningTurn, outcome: TurnOutcome, options: TurnOptions) -> TurnEnded:
        """Store the turn once, in the session it began in; then notify the listener."""
        progress = turn.progress
        if turn.taking_up is not None:
            await asyncio.wait({turn.taking_up})
        messages = list(add_missing_results(drop_thoughts(progress.messages), STOPPED))
        if not outcome.complete and outcome.text:
            messages.append(Message(Role.ASSISTANT, outcome.text))
        reply = (outcome.text or outcome.reply or outcome.problem) if options.outbox else None
        committed = await retry_while_busy(
            self.clock,
            lambda: self.lifecycle.commit_turn(
                turn.claim,
                messages,
                reply,
                interrupted=not outcome.complete,
                spent=progress.spent,
                recalled=[
                    RecalledItem(item.provider, item.session_id, item.turn, item.note_id, item.score)
                    for item in turn.recalled
                ],
            ),
        )
        self._start_background_work(turn, committed, messages, outcome, options)
        ended = TurnEnded(
            committed,
            outcome.text,
            outcome.problem,
            outcome.error,
            progress.model,
            progress.usage,
            progress.context_tokens,
        )
        try:
            options.listen(ended)
        except Exception:
            # The turn is stored, and a front end that fails to show it must not make it run again.
            log.exception(
                "turn %s is stored, but its listener failed", turn.claim.turn_id, extra=claim_fields(turn.claim)
            )
        return ended

    def _start_background_work(
        self,
        turn: RunningTurn,
        committed: CommittedTurn,
        messages: Sequence[Message],
        outcome: TurnOutcome,
        options: TurnOptions,
    ) -> None:
        self._extend_prompt_cache(turn, committed, messages)
        if self.titler is not None and outcome.complete and committed.status is TurnStatus.DONE:
            self.titler.consider(committed, options.choices)
        # Otherwise the user has left the session.
        if committed.status in (TurnStatus.DONE, TurnStatus.INTERRUPTED):
            self._consider_compression(turn, committed, messages, outcome, options)
            if self.recalls and options.lasting and turn.claim.kind.remembered:
                self.memory.turn_committed(turn.query, ref=committed.ref)
        if self.reviewer is not None and options.lasting and committed.reviews_due:
            self.reviewer.wake()

    def _extend_prompt_cache(self, turn: RunningTurn, committed: CommittedTurn, messages: Sequence[Message]) -> None:
        if turn.prepared is None:
            return
        prepared, choice = turn.prepared
        stored = Turn(
            committed.ref.session_id,
            committed.number,
            turn.claim.turn_id,
            committed.status,
            self.clock.now(),
            tuple(messages),
        )
        self.preparer.extend(prepared, stored, choice)

    def _consider_compression(
        self,
        turn: RunningTurn,
        committed: CommittedTurn,
        messages: Sequence[Message],
        outcome: TurnOutcome,
        options: TurnOptions,
    ) -> None:
        if self.compressor is None or turn.prepared is None:
            return
        prepared, choice = turn.prepared
        fill = measure_fill(
            prepared,
            self.preparer.room(choice, prepared.head),
            context_tokens=turn.progress.context_tokens,
            added_bytes=sum(bytes_of(text) for message in messages for text in message.texts()),
            # A model may reject a request that was counted as short enough.
            too_long=prepared.left_out or isinstance(outcome.error, ContextTooLong),
        )
        self.compressor.consider(committed.ref, fill, choice, options.listen, lasting=options.lasting)
