"""Compressing conversations: in the background after a turn, at once if one has to, and on request.

What is made is applied between two turns, through the one door. If the session has changed since, it is thrown away.
Whatever goes wrong, the conversation is as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec import Struct

from everthread.agent.asking import Choice
from everthread.agent.compression import (
    POOR_PASSES_MAX,
    Bounds,
    Cut,
    Fill,
    Gain,
    Urgency,
    bounds,
    bytes_of,
    cut,
    extract,
    gain,
    pruned,
    size_of,
    urgency,
)
from everthread.agent.events import Compressed, Compressing, CompressionFailed, Listen
from everthread.config import Compression
from everthread.domain.boundary import SUMMARY_CHARS_MAX, Compress, Refusal
from everthread.domain.errors import EverthreadError, NotCompressed
from everthread.domain.model import Lease, Session, SessionKey, SessionRef
from everthread.domain.spend import BYTES_PER_TOKEN
from everthread.lifecycle import Lifecycle
from everthread.memory import MemoryManager
from everthread.ports import Clock, ContextEngine, Store, UnitOfWork
from everthread.ports.context import Middle, Rollover
from everthread.ports.store import Incident

log = logging.getLogger("everthread.agent")

PASS_S_MAX = 300.0
STOP_S_MAX = 60.0
"""How long an answer waits for a summary before it makes do with an extract."""
COOL_DOWN_S = 300.0
ROLLOVER_S_MAX = 5.0
KNOWN_MAX = 1_000
_LOOK_S = 0.25

Measure = Callable[[SessionRef], Awaitable[Fill]]


class NothingToCover(NotCompressed):
    """All that there is has to stay as it is."""


class Made(Struct, frozen=True):
    """A summary that is ready, and what it was made from."""

    ref: SessionRef
    boundary: Compress
    turns: int
    gain: Gain
    instead_because: str = ""


@dataclass(slots=True)
class Known:
    """What this process knows of a session's compression; another process finds it out for itself."""

    model: str
    fill: Fill | None = None
    poor: int = 0
    """Passes in a row that saved too little."""
    cool_until: float = 0.0
    problem: str = ""
    making: asyncio.Task[None] | None = None
    ready: Made | None = None
    applying: asyncio.Lock = field(default_factory=asyncio.Lock)


class Compressor:
    """Decides after each turn, and sees a compression through. One pass a session at a time, whoever asks."""

    def __init__(
        self,
        store: Store,
        lifecycle: Lifecycle,
        memory: MemoryManager,
        engine: ContextEngine,
        clock: Clock,
        settings: Compression,
        *,
        holder: str,
        stop_s_max: float = STOP_S_MAX,
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._memory = memory
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._holder = holder
        self._stop_s_max = stop_s_max
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._refused: set[str] = set()
        self._going: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return bool(self._going)

    def bounds(self, choice: Choice) -> Bounds:
        """Looked up each time: whoever changes the model is under its bounds from then on."""
        reader = self._engine.reader(choice.name)
        return bounds(self._settings, choice.traits.context_tokens, reader.context_tokens, reader.name)

    def status(self, session_id: str) -> str:
        """What a person should know of it; empty if all is well."""
        known = self._known.get(session_id)
        if known is None:
            return ""
        if known.making is not None:
            return "A summary of this conversation is being made."
        if known.poor >= POOR_PASSES_MAX:
            return f"Not compressed any more: {known.problem}"
        if (left_s := known.cool_until - self._clock.now()) > 0:
            return f"Not compressed: {known.problem}; tried again in {_minutes(left_s)} at the earliest"
        return ""

    # --- After a turn ------------------------------------------------------------------------------------------------

    def consider(self, ref: SessionRef, fill: Fill, choice: Choice, listen: Listen, *, lasting: bool = True) -> None:
        """A turn is committed. Begin in the background what should be done; nothing is waited for."""
        if not self._settings.enabled and ref.session_id not in self._known:
            return
        known = self._know(ref.session_id, choice)
        known.fill = fill
        if known.ready is not None:
            self._start(known, self._apply(known, listen))
        elif known.making is None and lasting and self._due(known, fill, choice, listen) is not Urgency.NONE:
            self._start(known, self._in_background(ref, known, choice, listen))

    def _due(self, known: Known, fill: Fill, choice: Choice, listen: Listen) -> Urgency:
        if not self._settings.enabled:
            return Urgency.NONE
        within = self.bounds(choice)
        due = urgency(fill, within)
        if due is not Urgency.NONE and within.refusal:
            self._refuse(choice, within.refusal, listen)
            return Urgency.NONE
        if known.poor >= POOR_PASSES_MAX or (due is Urgency.SOON and self._clock.now() < known.cool_until):
            return Urgency.NONE
        return due

    def _refuse(self, choice: Choice, refusal: str, listen: Listen) -> None:
        """Said once for each model: it stays true for as long as that one is used."""
        if choice.name not in self._refused:
            self._refused.add(choice.name)
            listen(CompressionFailed(f"Long conversations lose their oldest turns from the model's sight: {refusal}"))

    async def _in_background(self, ref: SessionRef, known: Known, choice: Choice, listen: Listen) -> None:
        if self._clock.now() < known.cool_until:
            return
        try:
            known.ready = await self._in_turn(ref, lambda: self._made(ref, known, choice, PASS_S_MAX))
        except NothingToCover:
            self._counted(known, poor=True)
            if known.poor >= POOR_PASSES_MAX:
                listen(CompressionFailed(_given_up(known)))
        except NotCompressed as error:
            self._failed(known, str(error), listen)
        if known.ready is not None:
            await self._apply(known, listen)

    # --- Before a turn -----------------------------------------------------------------------------------------------

    async def before_turn(self, key: SessionKey, choice: Choice, measure: Measure, listen: Listen) -> None:
        """The hard stop: what is ready is applied, and a conversation that would not fit is made to."""
        if not self._settings.enabled:
            return
        ref = await self._lifecycle.current(key)
        if ref is None:
            return
        try:
            known = self._know(ref.session_id, choice)
            if known.ready is not None:
                await self._apply(known, listen)
                ref = await self._lifecycle.current(key) or ref
                known = self._know(ref.session_id, choice)
            if known.fill is None:
                known.fill = await measure(ref)
            if self._due(known, known.fill, choice, listen) is Urgency.NOW:
                listen(Compressing())
                await self._stop(ref, known, choice, listen)
        except EverthreadError as error:
            # The turn has its own way to tell what is wrong, and to do without the oldest turns.
            log.warning("session %s is not compressed: %s", ref.session_id, error)

    async def _stop(self, ref: SessionRef, known: Known, choice: Choice, listen: Listen) -> None:
        why = known.problem
        if known.making is not None:
            await asyncio.wait({known.making}, timeout=self._stop_s_max)
            if ref.session_id not in self._known or (known.ready is not None and await self._apply(known, listen)):
                return
            why = known.problem or f"no summary within {self._stop_s_max:g} s"
        elif self._clock.now() >= known.cool_until:
            try:
                make = lambda: self._made(ref, known, choice, self._stop_s_max)  # noqa: E731 - shorter than its name
                known.ready = await self._in_turn(ref, make, self._stop_s_max)
                if await self._apply(known, listen):
                    return
                why = "another process has begun one"
            except NotCompressed as error:
                why = str(error)
                self._cool(known, why)
        if known.poor < POOR_PASSES_MAX:
            known.ready = await self._extracted(ref, known, choice, why or "there is none")
            await self._apply(known, listen)

    # --- On request --------------------------------------------------------------------------------------------------

    async def compress(self, ref: SessionRef, fill: Fill, choice: Choice, focus: str) -> Compressed:
        """Because somebody asks for it: however little there is to gain. Raises `NotCompressed`."""
        within = self.bounds(choice)
        if within.refusal:
            raise NotCompressed(within.refusal)
        known = self._know(ref.session_id, choice)
        if known.making is not None:
            raise NotCompressed("a summary is being made already; it is taken up before the next answer")
        if known.fill is None or not known.fill.context_tokens:
            known.fill = fill
        known.poor, known.cool_until, known.problem = 0, 0.0, ""
        heard: list[Compressed] = []

        def listen(event: object) -> None:
            if isinstance(event, Compressed):
                heard.append(event)

        known.ready = await self._in_turn(
            ref, lambda: self._made(ref, known, choice, PASS_S_MAX, focus=focus, asked_for=True)
        )
        if known.ready is None:
            raise NotCompressed("another process is summarising this conversation; try again in a moment")
        if not await self._apply(known, listen):
            raise NotCompressed(
                "a message is being answered here; the summary is taken up after it"
                if known.ready
                else "the conversation has changed meanwhile; try again"
            )
        return heard[0]

    # --- Making a summary --------------------------------------------------------------------------------------------

    async def _made(
        self,
        ref: SessionRef,
        known: Known,
        choice: Choice,
        bound_s: float,
        *,
        focus: str = "",
        asked_for: bool = False,
    ) -> Made:
        assert known.fill is not None
        fill, within = known.fill, self.bounds(choice)
        session, previous, parts = await self._parts(ref, fill, within, asked_for=asked_for)
        if not parts.covered:
            raise NothingToCover("the last turns are kept as they are, and there are none before them")
        try:
            async with asyncio.timeout(bound_s):
                shorter = await asyncio.to_thread(lambda: tuple(pruned(turn) for turn in parts.covered))
                messages = [message for turn in parts.covered for message in turn.messages]
                hints = await self._memory.on_pre_compress(messages, ref=ref)
                summary = await self._engine.summarise(
                    Middle(ref, choice.name, previous, shorter, hints=hints, focus=focus)
                )
        except TimeoutError as error:
            raise NotCompressed(f"no summary within {bound_s:g} s") from error
        except EverthreadError as error:
            raise NotCompressed(str(error)) from error
        except Exception as error:
            log.exception("summarising session %s failed", ref.session_id)
            raise NotCompressed("something went wrong inside; the log says what") from error
        return _made(session, ref, previous, parts, summary, fill, within)

    async def _extracted(self, ref: SessionRef, known: Known, choice: Choice, why: str) -> Made:
        assert known.fill is not None
        within = self.bounds(choice)
        session, previous, parts = await self._parts(ref, known.fill, within)
        if not parts.covered:
            raise NotCompressed("its last turn alone is almost too long for the model")
        summary = extract(previous, parts.covered)
        return _made(session, ref, previous, parts, summary, known.fill, within, why)

    async def _parts(
        self, ref: SessionRef, fill: Fill, within: Bounds, *, asked_for: bool = False
    ) -> tuple[Session, str, Cut]:
        tail_tokens = within.tail_tokens
        if asked_for:
            # Whoever asks wants something to be done, even where all of it would fit into the tail.
            tail_tokens = min(tail_tokens, fill.history_bytes // BYTES_PER_TOKEN // 4)

        def parts(uow: UnitOfWork) -> tuple[Session | None, str, Cut]:
            session = uow.sessions.get(ref.session_id)
            if session is None or session.owner != ref.owner or session.generation != ref.generation:
                return None, "", Cut((), ())
            view = uow.turns.view(session)
            newest_tokens_max = fill.room_bytes // BYTES_PER_TOKEN // 2
            return session, view.summary or "", cut(view.turns, tail_tokens, newest_tokens_max)

        session, previous, found = await self._store.read(parts)
        if session is None:
            raise NotCompressed("the conversation has changed meanwhile")
        return session, previous, found

    async def _in_turn(
        self, ref: SessionRef, make: Callable[[], Awaitable[Made]], patience_s: float = 0.0
    ) -> Made | None:
        """One process at a time pays for a summary of a session; `None` if another does. The crossing decides."""
        name = f"compress:{ref.session_id}"
        until = self._clock.now() + patience_s

        def acquire(uow: UnitOfWork) -> Lease | None:
            return uow.lanes.acquire(name, self._holder, self._clock.now(), PASS_S_MAX)

        while (lease := await self._store.write(acquire)) is None:
            if self._clock.now() >= until:
                return None
            await self._clock.sleep(_LOOK_S)
        try:
            return await make()
        finally:
            await asyncio.shield(self._release(lease))

    async def _release(self, lease: Lease) -> None:
        await self._store.write(lambda uow: uow.lanes.release(lease))

    # --- Applying it -------------------------------------------------------------------------------------------------

    async def _apply(self, known: Known, listen: Listen) -> bool:
        """Cross with what is ready, if no turn runs; whether that is done. What does not fit any more is dropped."""
        async with known.applying:
            made, known.ready = known.ready, None
            if made is None:
                return False
            key = await self._store.peek(lambda uow: _a_key(uow, made.ref))
            crossing = await self._lifecycle.cross(key, made.boundary, owner=made.ref.owner, actor="compression")
            if crossing.refusal is Refusal.TURN_RUNNING:
                known.ready = made
            if crossing.refusal is not None or crossing.ref is None:
                return False
            self._went_on(known, made, crossing.ref)
        await self._tell(made, crossing.ref)
        listen(
            Compressed(crossing.ref, made.turns, made.gain.tokens_before, made.gain.tokens_after, made.instead_because)
        )
        if known.poor >= POOR_PASSES_MAX:
            listen(CompressionFailed(_given_up(known)))
        return True

    def _went_on(self, known: Known, made: Made, entered: SessionRef) -> None:
        """From here on it is the continuation that is known."""
        self._known.pop(made.ref.session_id, None)
        self._known[entered.session_id] = known
        known.fill = None
        if not made.instead_because:
            known.problem, known.cool_until = "", 0.0
        self._counted(known, poor=made.gain.poor)

    def _counted(self, known: Known, *, poor: bool) -> None:
        known.poor = known.poor + 1 if poor else 0
        if known.poor >= POOR_PASSES_MAX:
            known.problem = (
                f"{POOR_PASSES_MAX} times in a row it hardly became shorter; raise compression.share, lower "
                "compression.tail_tokens, or choose a model with a larger context. /compress tries it once more"
            )

    async def _tell(self, made: Made, entered: SessionRef) -> None:
        boundary = made.boundary
        rollover = Rollover(
            made.ref, entered, boundary.summary, boundary.covers_to, made.turns, bool(made.instead_because)
        )
        try:
            async with asyncio.timeout(ROLLOVER_S_MAX):
                await self._engine.on_rollover(rollover)
        except Exception as error:  # noqa: BLE001 - an engine that fails is reported; the conversation has gone on
            text = f"the context engine failed to follow: {str(error) or repr(error)}"
            log.warning("session %s: %s", entered.session_id, text)
            incident = Incident(self._clock.now(), "context_engine", entered.session_id, text)
            await self._store.write(lambda uow: uow.lanes.add_incident(incident))

    # --- Bookkeeping -------------------------------------------------------------------------------------------------

    def _know(self, session_id: str, choice: Choice) -> Known:
        known = self._known.get(session_id)
        if known is None:
            known = self._known[session_id] = Known(choice.name)
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(session_id)
        if known.model != choice.name:
            # Another model has other bounds: what held for the one before is open again.
            known.model, known.poor, known.fill = choice.name, 0, None
        return known

    def _failed(self, known: Known, why: str, listen: Listen) -> None:
        self._cool(known, why)
        listen(
            CompressionFailed(
                f"This conversation was not compressed: {why}. It is as it was; "
                f"tried again in {_minutes(COOL_DOWN_S)} at the earliest."
            )
        )

    def _cool(self, known: Known, why: str) -> None:
        known.problem, known.cool_until = why, self._clock.now() + COOL_DOWN_S

    def _start(self, known: Known, work: Awaitable[object]) -> None:
        async def run() -> None:
            await work

        task = asyncio.ensure_future(run())
        known.making = task
        self._going.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._going.discard(task)
            known.making = None
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("compressing a conversation failed", exc_info=error)

        task.add_done_callback(ended)

    async def aclose(self) -> None:
        """Leave what is under way: the conversation is as it was, and the next process finds that out."""
        for task in self._going:
            task.cancel()
        if self._going:
            await asyncio.wait(self._going)


def _made(
    session: Session,
    ref: SessionRef,
    previous: str,
    parts: Cut,
    summary: str,
    fill: Fill,
    within: Bounds,
    instead_because: str = "",
) -> Made:
    """Raises `NotCompressed` if the summary is of no use."""
    replaced = bytes_of(previous) + sum(size_of(turn) for turn in parts.covered)
    if not summary.strip() or len(summary) > SUMMARY_CHARS_MAX:
        raise NotCompressed("the summary that came back is empty or far too long")
    if bytes_of(summary) >= replaced:
        raise NotCompressed("the summary that came back is longer than what it would replace")
    covers_to = parts.covered[-1].number
    boundary = Compress(session.id, session.generation, summary, covers_to)
    gained = gain(fill, within, replaced_bytes=replaced, summary=summary)
    return Made(ref, boundary, len(parts.covered), gained, instead_because)


def _a_key(uow: UnitOfWork, ref: SessionRef) -> SessionKey:
    """A key that is on the session: the one that asked may have left it to others."""
    keys = uow.sessions.keys_on(ref.session_id)
    return ref.key if ref.key in keys or not keys else keys[0]


def _given_up(known: Known) -> str:
    return f"This conversation is not compressed any more: {known.problem}"


def _minutes(seconds: float) -> str:
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} minute{'' if minutes == 1 else 's'}"
