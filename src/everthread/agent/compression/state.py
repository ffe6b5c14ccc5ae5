"""Compression state of sessions.

Fill levels are kept in memory. Pauses after failed or poor passes are stored, for all processes.

Tested in tests/unit/agent/compression/test_service.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from msgspec import Struct, field

from everthread.agent.compression.attempt import FinishedSummary
from everthread.agent.compression.policy import POOR_PASSES_MAX, ContextFill
from everthread.agent.prompt_cache import COUNT_MAX
from everthread.domain.clock_rules import is_waiting
from everthread.domain.errors import StoreError
from everthread.ports.clock import Clock
from everthread.store.compression_pauses import CompressionPause
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.agent")

COOL_DOWN_S = 300.0
KNOWN_MAX = COUNT_MAX
"""The same number as prompt cache entries. A session beyond it is read from the store at each message."""
TOO_POOR = (
    f"the last {POOR_PASSES_MAX} summaries saved too little; raise compression.share, lower "
    "compression.tail_tokens, or choose a model with a larger context. /compress makes another attempt"
)


class CompressionState(Struct):
    """Compression state of one session in this process."""

    model: str
    fill: ContextFill | None = None
    poor: int = 0
    """Number of consecutive passes that saved too little."""
    cool_until: float = 0.0
    problem: str = ""
    making: asyncio.Task[object] | None = None
    queued: bool = False
    """The pass waits for other background passes."""
    ready: FinishedSummary | None = None
    applying: asyncio.Lock = field(default_factory=asyncio.Lock)
    loaded: bool = False
    """The stored pause, if any, has been read."""
    stored: bool = False
    """The store has a pause for the session."""

    @property
    def given_up(self) -> bool:
        return self.poor >= POOR_PASSES_MAX

    def is_paused(self, now: float) -> bool:
        return is_waiting(self.cool_until, now, COOL_DOWN_S)

    def pause(self, why: str, now: float) -> None:
        """Pause compression for `COOL_DOWN_S`."""
        self.problem, self.cool_until = why, now + COOL_DOWN_S

    def count_pass(self, *, poor: bool) -> None:
        self.poor = self.poor + 1 if poor else 0
        if self.given_up:
            self.problem = TOO_POOR

    def reset(self) -> None:
        self.poor, self.cool_until, self.problem = 0, 0.0, ""


class CompressionStates(Struct, frozen=True):
    """LRU cache of the compression state of sessions."""

    store: Store
    clock: Clock
    _known: OrderedDict[str, CompressionState] = field(default_factory=OrderedDict[str, CompressionState])

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._known

    def of(self, session_id: str, model: str) -> CompressionState:
        """Return the state in memory, reset if the model has changed."""
        known = self._known.get(session_id)
        if known is None:
            known = self._known[session_id] = CompressionState(model)
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(session_id)
        if known.model != model:
            # Another model has other thresholds.
            known.model, known.poor, known.fill = model, 0, None
        return known

    async def load(self, session_id: str, model: str) -> CompressionState:
        """Return the state, including the pause that an earlier process stored."""
        known = self.of(session_id, model)
        if not known.loaded:
            pause = await self.store.read_inline(lambda uow: uow.compression_pauses.get(session_id))
            if pause is not None and not known.loaded:
                known.poor = pause.poor if pause.model == model else 0
                known.cool_until, known.problem, known.stored = pause.cool_until, pause.problem, True
            known.loaded = True
        return known

    async def status(self, session_id: str, *, whole: bool) -> str:
        """Describe a pause or a running pass; empty if none. `whole` adds the reason, which may name models."""
        known = self._known.get(session_id)
        if known is None or not known.loaded:
            pause = await self.store.read_inline(lambda uow: uow.compression_pauses.get(session_id))
            known = (
                CompressionState("", None, pause.poor, pause.cool_until, pause.problem)
                if pause is not None
                else CompressionState("")
            )
        if known.making is not None:
            return "A summary of this conversation is being made."
        if known.given_up:
            return f"Compression has stopped: {known.problem}" if whole else "Compression has stopped."
        if known.is_paused(now := self.clock.now()):
            why = f"Compression is paused: {known.problem}" if whole else "Compression is paused"
            return f"{why}; the next attempt is in {minutes(known.cool_until - now)} at the earliest"
        return ""

    async def move(self, known: CompressionState, left: str, entered: str) -> None:
        """Move the state from the session that was left to its continuation."""
        self._known.pop(left, None)
        self._known[entered] = known
        known.fill = None
        await self._put(left, None, known)
        await self.put(entered, known)

    async def put(self, session_id: str, known: CompressionState) -> None:
        """Store or clear the session's pause. If the write fails, another process makes one unnecessary pass."""
        pause = (
            CompressionPause(session_id, known.model, known.poor, known.cool_until, known.problem)
            if known.poor or known.is_paused(self.clock.now())
            else None
        )
        await self._put(session_id, pause, known)

    async def _put(self, session_id: str, pause: CompressionPause | None, known: CompressionState) -> None:
        if pause is None and not known.stored:
            return
        known.loaded, known.stored = True, pause is not None
        try:
            await self.store.write(
                lambda uow: (
                    uow.compression_pauses.drop(session_id) if pause is None else uow.compression_pauses.put(pause)
                )
            )
        except StoreError as error:
            log.warning("session %s: could not store the pause of its compression: %s", session_id, error)


def minutes(seconds: float) -> str:
    count = max(round(seconds / 60), 1)
    return f"{count} minute{'' if count == 1 else 's'}"
