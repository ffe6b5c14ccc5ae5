"""Compress conversations: in the background after a turn, before a turn that would not fit, and on request.

A summary is applied between two turns, by `Lifecycle.cross`. It is discarded if the session has changed since.
A failure leaves the conversation unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from everthread.agent.compression import attempt as rollover
from everthread.agent.compression.attempt import PASS_S_MAX, Changed, NothingToCover, Source, SummaryMaker
from everthread.agent.compression.policy import Bounds, ContextFill, Urgency, bounds, urgency
from everthread.agent.compression.state import COOL_DOWN_S, CompressionState, CompressionStates, minutes
from everthread.agent.events import Compressed, Compressing, CompressionFailed, Listen
from everthread.agent.model_call import ModelChoice, bytes_of
from everthread.agent.prompt_cache import Prepared
from everthread.concurrency import wait_until_done
from everthread.config.schema import CompressionSettings
from everthread.domain.boundary import Refusal
from everthread.domain.errors import EverthreadError, NotCompressed
from everthread.domain.model import SessionKey, SessionRef
from everthread.domain.spend import BYTES_PER_TOKEN
from everthread.lifecycle import Lifecycle
from everthread.memory import MemoryManager
from everthread.ports.clock import Clock
from everthread.ports.context import ContextEngine
from everthread.store.unit_of_work import Store

log = logging.getLogger("everthread.agent")

STOP_S_MAX = 60.0
"""Longest wait of a turn for a summary, before an extract is used instead."""
AT_ONCE_MAX = 4
"""Concurrent background passes; more would slow down running turns."""

Measure = Callable[[SessionRef], Awaitable[ContextFill]]


class Compressor:
    """Decide after each turn, and carry out compressions. At most one pass runs for a session."""

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        memory: MemoryManager,
        engine: ContextEngine,
        clock: Clock,
        settings: CompressionSettings,
        *,
        holder: str,
        stop_s_max: float = STOP_S_MAX,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._maker = SummaryMaker(store, memory, engine, clock, holder)
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._stop_s_max = stop_s_max
        self._states = CompressionStates(store, clock)
        self._refused: set[str] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._background = asyncio.Semaphore(AT_ONCE_MAX)

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def bounds(self, choice: ModelChoice) -> Bounds:
        """Compute the thresholds for a model. They are not cached, so a model change takes effect immediately."""
        window = choice.traits.context_tokens
        try:
            reader = self._engine.reader(choice.name)
        except Exception as error:  # noqa: BLE001 - a turn that is committed must not suffer from an engine that fails
            return replace(bounds(self._settings, window, window, ""), refusal=str(error) or repr(error))
        return bounds(self._settings, window, reader.context_tokens, reader.name)

    async def status(self, session_id: str, *, whole: bool = True) -> str:
        """Describe a pause or a running pass; empty if none. `whole` adds the reason, which may name models."""
        return await self._states.status(session_id, whole=whole)

    # --- After a turn ------------------------------------------------------------------------------------------------

    def consider(
        self, ref: SessionRef, fill: ContextFill, choice: ModelChoice, listen: Listen, *, lasting: bool = True
    ) -> None:
        """Start a compression in the background after a committed turn, if one is due."""
        if not self._settings.enabled and ref.session_id not in self._states:
            return
        state = self._states.of(ref.session_id, choice.name)
        state.fill = fill
        if state.ready is not None:
            self._start(state, self._apply(state, listen))
        elif state.making is None and lasting and self._due(state, fill, choice, listen) is not Urgency.NONE:
            self._start(state, self._summarise(ref, state, fill, choice, listen))

    def _due(
        self, state: CompressionState, fill: ContextFill, choice: ModelChoice, listen: Listen, *, coming_tokens: int = 0
    ) -> Urgency:
        if not self._settings.enabled:
            return Urgency.NONE
        within = self.bounds(choice)
        due = urgency(fill, within, coming_tokens)
        if due is not Urgency.NONE and within.refusal:
            self._report_refusal(choice, within.refusal, listen)
            return Urgency.NONE
        if state.given_up or (due is Urgency.SOON and state.is_paused(self._clock.now())):
            return Urgency.NONE
        return due

    def _report_refusal(self, choice: ModelChoice, refusal: str, listen: Listen) -> None:
        """Report the refusal once for each model."""
        if choice.name not in self._refused:
            self._refused.add(choice.name)
            listen(
                CompressionFailed(
                    f"Long conversations can't be compressed, so the model will not see their oldest turns: {refusal}"
                )
            )

    async def _summarise(
        self, ref: SessionRef, state: CompressionState, fill: ContextFill, choice: ModelChoice, listen: Listen
    ) -> None:
        await self._states.load(ref.session_id, choice.name)
        if state.given_up or state.is_paused(self._clock.now()):
            return
        try:
            state.queued = True
            async with self._background:
                state.queued = False
                finished = await self._maker.summarise(self._source(ref, fill, choice), PASS_S_MAX)
        except Changed:
            return
        except NothingToCover:
            await self._record_poor_pass(ref, state, listen)
        except NotCompressed as error:
            await self._report_failure(ref, state, str(error), listen)
        else:
            if finished is not None:
                state.ready = finished
                await self._apply(state, listen)

    def _source(self, ref: SessionRef, fill: ContextFill, choice: ModelChoice) -> Source:
        return Source(ref, fill, self.bounds(choice), choice.name)

    async def _record_poor_pass(self, ref: SessionRef, state: CompressionState, listen: Listen) -> None:
        state.count_pass(poor=True)
        await self._states.put(ref.session_id, state)
        if state.given_up:
            listen(CompressionFailed(_stopped_text(state)))

    # --- Before a turn -----------------------------------------------------------------------------------------------

    async def before_turn(self, key: SessionKey, choice: ModelChoice, measure: Measure, listen: Listen) -> None:
        """Apply a finished summary, and compress now if the next turn would not fit (the hard stop)."""
        if not self._settings.enabled:
            return
        ref = await self._lifecycle.current(key)
        if ref is None:
            return
        try:
            state = await self._states.load(ref.session_id, choice.name)
            if state.ready is not None:
                await self._apply(state, listen)
                ref = await self._lifecycle.current(key) or ref
                state = await self._states.load(ref.session_id, choice.name)
            # Each await may clear `state.fill`: another task may continue the conversation in a new session.
            fill = state.fill or await measure(ref)
            state.fill = fill
            coming = await self._store.read_inline(lambda uow: uow.inbox.first_waiting(key))
            tokens = bytes_of(coming.inbound.text) // BYTES_PER_TOKEN if coming is not None else 0
            if self._due(state, fill, choice, listen, coming_tokens=tokens) is Urgency.NOW:
                listen(Compressing())
                await self._compress_now(ref, state, fill, choice, listen)
        except EverthreadError as error:
            # The turn reports its own errors, and can leave out the oldest turns.
            log.warning("session %s is not compressed: %s", ref.session_id, error)

    async def _compress_now(
        self, ref: SessionRef, state: CompressionState, fill: ContextFill, choice: ModelChoice, listen: Listen
    ) -> None:
        """Apply a summary if one is ready in time, otherwise an extract."""
        bound_s, source = self._stop_s_max, self._source(ref, fill, choice)
        why = state.problem
        try:
            if state.making is not None and state.queued:
                await self._wait_or_cancel(state.making, 0.0)
            if state.making is not None:
                await self._wait_or_cancel(state.making, bound_s)
                why = state.problem or f"no summary within {bound_s:g} s"
            elif not state.is_paused(self._clock.now()):
                state.ready = await self._maker.summarise(source, bound_s, lease_wait_s=bound_s)
                why = "another process is making one"
        except NothingToCover:
            await self._record_poor_pass(ref, state, listen)
            return
        except Changed:
            # The session has changed meanwhile and has become shorter.
            return
        except NotCompressed as error:
            why = str(error)
            await self._pause(ref, state, why)
        if state.ready is not None:
            await self._apply(state, listen)
        if state.ready is None and ref.session_id in self._states and not state.given_up:
            state.ready = await self._maker.extract(source, why or "for an unknown reason")
            await self._apply(state, listen)

    async def _wait_or_cancel(self, making: asyncio.Task[object], bound_s: float) -> None:
        await asyncio.wait({making}, timeout=bound_s)
        # A later result would belong to a session that is no longer current.
        making.cancel()
        await asyncio.wait({making})

    # --- On request --------------------------------------------------------------------------------------------------

    async def compress(self, ref: SessionRef, fill: ContextFill, choice: ModelChoice, focus: str) -> Compressed:
        """Compress at the user's request, even if the gain is small. Raises `NotCompressed`."""
        within = self.bounds(choice)
        if within.refusal:
            raise NotCompressed(within.refusal)
        state = await self._states.load(ref.session_id, choice.name)
        if state.making is not None:
            raise NotCompressed("a summary is already being made; it is used from the next answer on")
        if state.fill is None or not state.fill.context_tokens:
            state.fill = fill
        state.reset()
        events: list[Compressed] = []

        def listen(event: object) -> None:
            if isinstance(event, Compressed):
                events.append(event)

        source = self._source(ref, state.fill, choice)
        state.ready = await self._maker.summarise(source, PASS_S_MAX, focus=focus, requested=True)
        if state.ready is None:
            raise NotCompressed("another process is summarising this conversation; try again in a moment")
        if not await self._apply(state, listen):
            raise NotCompressed(
                "a message is being answered; the summary is used after that answer"
                if state.ready
                else "the conversation has changed meanwhile; try again"
            )
        return events[0]

    # --- Apply a summary ---------------------------------------------------------------------------------------------

    async def _apply(self, state: CompressionState, listen: Listen) -> bool:
        """Cross with the finished summary, if no turn runs. Return true if done. A stale summary is dropped."""
        # A cancelled caller must not prevent the notification of the engine and the listener.
        applying = asyncio.ensure_future(self._apply_locked(state, listen))
        stopped = await wait_until_done(applying)
        if stopped is not None:
            applying.exception()
            raise stopped
        return applying.result()

    async def _apply_locked(self, state: CompressionState, listen: Listen) -> bool:
        async with state.applying:
            finished, state.ready = state.ready, None
            if finished is None:
                return False
            entered = await rollover.cross(self._store, self._lifecycle, finished)
            if entered is Refusal.TURN_RUNNING:
                state.ready = finished
            if isinstance(entered, Refusal):
                return False
            if not finished.instead_because:
                state.problem, state.cool_until = "", 0.0
            state.count_pass(poor=finished.gain.poor)
            await self._states.move(state, finished.ref.session_id, entered.session_id)
        await rollover.notify_engine(self._engine, self._store, self._clock, finished, entered)
        gained = finished.gain
        listen(Compressed(entered, finished.turns, gained.tokens_before, gained.tokens_after, finished.instead_because))
        if state.given_up:
            listen(CompressionFailed(_stopped_text(state)))
        return True

    # --- Bookkeeping -------------------------------------------------------------------------------------------------

    async def _report_failure(self, ref: SessionRef, state: CompressionState, why: str, listen: Listen) -> None:
        await self._pause(ref, state, why)
        listen(
            CompressionFailed(
                f"This conversation was not compressed: {why}. It is unchanged; "
                f"the next attempt is in {minutes(COOL_DOWN_S)} at the earliest."
            )
        )

    async def _pause(self, ref: SessionRef, state: CompressionState, why: str) -> None:
        state.pause(why, self._clock.now())
        await self._states.put(ref.session_id, state)

    def _start(self, state: CompressionState, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        state.making = task
        self._tasks.add(task)

        def ended(task: asyncio.Task[object]) -> None:
            self._tasks.discard(task)
            state.making, state.queued = None, False
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("compressing a conversation failed", exc_info=error)

        task.add_done_callback(ended)

    async def aclose(self) -> None:
        """Cancel running passes. Their conversations are unchanged, and the next process decides anew."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def measure_fill(
    prepared: Prepared, room_bytes: int, *, context_tokens: int = 0, added_bytes: int = 0, too_long: bool = False
) -> ContextFill:
    """Measure a conversation by its prepared request and the size of its last turn."""
    return ContextFill(len(prepared.head), len(prepared.history) + added_bytes, room_bytes, context_tokens, too_long)


def _stopped_text(state: CompressionState) -> str:
    return f"Compression of this conversation has stopped: {state.problem}"
