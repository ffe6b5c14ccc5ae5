"""One compression pass: read the conversation, have the context engine summarise it, check the result.

`cross` continues the conversation in a new session if the summary is still valid. `notify_engine` tells the context
engine.

Tested in tests/unit/agent/compression/test_service.py.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec import Struct
from msgspec.structs import replace

from everthread.agent.compression.policy import Bounds, ContextFill, Cut, Gain, cut, extract, gain, prune, size_of
from everthread.agent.model_call import bytes_of
from everthread.concurrency import in_slices
from everthread.domain.boundary import SUMMARY_CHARS_MAX, Compress, Refusal
from everthread.domain.errors import EverthreadError, NotCompressed
from everthread.domain.model import Lease, SessionKey, SessionRef
from everthread.domain.spend import BYTES_PER_TOKEN
from everthread.lifecycle import Lifecycle
from everthread.log_context import Private
from everthread.memory import MemoryManager
from everthread.ports.clock import Clock
from everthread.ports.context import ContextEngine, Middle, Rollover
from everthread.store.incidents import Incident
from everthread.store.leases import COMPRESSION_LEASE, COMPRESSION_LEASE_S
from everthread.store.unit_of_work import Store, UnitOfWork

log = logging.getLogger("everthread.agent")

PASS_S_MAX = COMPRESSION_LEASE_S
_POLL_S = 0.25


class NothingToCover(NotCompressed):
    """Every turn has to be kept as it is."""


class Changed(NotCompressed):
    """The session has changed since its compression was requested."""


class FinishedSummary(Struct, frozen=True):
    """A finished summary, its source session and its gain."""

    ref: SessionRef
    boundary: Compress
    turns: int
    gain: Gain
    instead_because: str = ""
    """The reason for an extract in place of a summary; empty for a summary."""


class Source(Struct, frozen=True):
    """The input of a pass."""

    ref: SessionRef
    fill: ContextFill
    within: Bounds
    model: str
    previous: str = ""
    parts: Cut = Cut((), ())
    forget_count: int = 0
    remembered: bool = True
    """Memory providers receive the session and may give hints for its summary."""
    covered_bytes: int = 0
    kept_bytes: int = 0


class SummaryMaker(Struct, frozen=True):
    """Make summaries and extracts, without applying them."""

    store: Store
    memory: MemoryManager
    engine: ContextEngine
    clock: Clock
    holder: str

    async def summarise(
        self,
        wanted: Source,
        bound_s: float,
        *,
        focus: str = "",
        requested: bool = False,
        lease_wait_s: float = 0.0,
    ) -> FinishedSummary | None:
        """Make a summary within `bound_s`. Return `None` if another process makes one. Raises `NotCompressed`.

        A lease keeps two processes from paying for the same summary. If the lease is lost, the crossing still detects
        a stale summary.
        """
        lease = await self._acquire_lease(f"{COMPRESSION_LEASE}{wanted.ref.session_id}", lease_wait_s)
        if lease is None:
            return None
        try:
            source = await self._read(wanted, requested=requested)
            return check_summary(source, await self._ask_engine(source, bound_s, focus))
        finally:
            await asyncio.shield(self.store.write(lambda uow: uow.leases.release(lease)))

    async def extract(self, wanted: Source, why: str) -> FinishedSummary:
        """Make an extract, which needs no context engine."""
        source = await self._read(wanted)
        return check_summary(source, extract(source.previous, source.parts.covered), why)

    async def _acquire_lease(self, name: str, lease_wait_s: float) -> Lease | None:
        until = self.clock.elapsed() + lease_wait_s

        def acquire(uow: UnitOfWork) -> Lease | None:
            # The longest duration of a pass, so that a killed process does not block the others for longer.
            return uow.leases.acquire(name, self.holder, self.clock.now(), PASS_S_MAX)

        while (lease := await self.store.write(acquire)) is None and self.clock.elapsed() < until:
            await self.clock.sleep(_POLL_S)
        return lease

    async def _read(self, wanted: Source, *, requested: bool = False) -> Source:
        ref, tail_tokens = wanted.ref, wanted.within.tail_tokens
        if requested:
            # A user who asks for a compression expects one, even if all turns would fit into the tail.
            tail_tokens = min(tail_tokens, wanted.fill.history_bytes // BYTES_PER_TOKEN // 4)
        newest_tokens_max = wanted.fill.room_bytes // BYTES_PER_TOKEN // 2

        def read(uow: UnitOfWork) -> tuple[str, Cut, int, bool, int, int] | None:
            session = uow.sessions.get(ref.session_id)
            if session is None or session.owner != ref.owner or session.generation != ref.generation:
                return None
            view = uow.turns.view(session)
            parts = cut(view.turns, tail_tokens, newest_tokens_max)
            # Measured in the reader thread: measuring a long conversation would block the event loop.
            covered_bytes, kept_bytes = (sum(map(size_of, turns)) for turns in (parts.covered, parts.kept))
            forget_count, remembered = uow.erasure.forget_count(ref.owner), session.kind.remembered
            return view.summary or "", parts, forget_count, remembered, covered_bytes, kept_bytes

        found = await self.store.read(read)
        if found is None:
            raise Changed("the conversation has changed meanwhile; try again")
        if not found[1].covered:
            raise NothingToCover("there are no older turns to summarise; the last turns are always kept")
        return Source(ref, wanted.fill, wanted.within, wanted.model, *found)

    async def _ask_engine(self, source: Source, bound_s: float, focus: str) -> str:
        covered = source.parts.covered
        try:
            async with asyncio.timeout(bound_s):
                # In slices: pruning a long conversation in one step would block the event loop.
                shorter = tuple(await in_slices(prune, covered))
                messages = [message for turn in covered for message in turn.messages]
                # A session that is hidden from memory providers is hidden from them here as well.
                hints = await self.memory.on_pre_compress(messages, ref=source.ref) if source.remembered else ()
                return await self.engine.summarise(
                    Middle(source.ref, source.model, source.previous, shorter, hints=hints, focus=focus)
                )
        except TimeoutError as error:
            raise NotCompressed(f"no summary within {bound_s:g} s") from error
        except EverthreadError as error:
            raise NotCompressed(str(error)) from error
        except Exception as error:
            log.exception("summarising session %s failed", source.ref.session_id)
            raise NotCompressed("internal error; see the log") from error


def check_summary(source: Source, summary: str, instead_because: str = "") -> FinishedSummary:
    """Check a summary and measure its gain. Raises `NotCompressed` if it is empty or too long."""
    covered, previous_bytes = source.parts.covered, bytes_of(source.previous)
    if not summary.strip() or len(summary) > SUMMARY_CHARS_MAX:
        raise NotCompressed("the model's summary is empty or too long")
    if bytes_of(summary) >= previous_bytes + source.covered_bytes:
        raise NotCompressed("the model's summary is longer than the turns it would replace")
    gained = gain(
        source.fill,
        source.within,
        covered_bytes=source.covered_bytes,
        kept_bytes=source.kept_bytes,
        added_bytes=bytes_of(summary) - previous_bytes,
    )
    boundary = Compress(source.ref.session_id, source.ref.generation, summary, covered[-1].number)
    # The crossing refuses the summary if the owner had something forgotten since: the summary may still contain it.
    boundary = replace(boundary, forget_count=source.forget_count)
    return FinishedSummary(source.ref, boundary, len(covered), gained, instead_because)


NOTIFY_S_MAX = 5.0


async def cross(store: Store, lifecycle: Lifecycle, finished: FinishedSummary) -> SessionRef | Refusal:
    """Cross to the continuation. Return its session, or the refusal."""
    key = await store.read_inline(lambda uow: _bound_key(uow, finished.ref))
    crossing = await lifecycle.cross(key, finished.boundary, owner=finished.ref.owner, actor="compression")
    return crossing.refusal or crossing.ref or Refusal.STALE


def _bound_key(uow: UnitOfWork, ref: SessionRef) -> SessionKey:
    """Return a key bound to the session; the key of the ref may have left it."""
    keys = uow.sessions.keys_on(ref.session_id)
    return ref.key if ref.key in keys or not keys else keys[0]


async def notify_engine(
    engine: ContextEngine, store: Store, clock: Clock, finished: FinishedSummary, entered: SessionRef
) -> None:
    """Notify the context engine, within `NOTIFY_S_MAX`. Record a failure as an incident: the crossing stands."""
    boundary, mechanical = finished.boundary, bool(finished.instead_because)
    rollover = Rollover(finished.ref, entered, boundary.summary, boundary.covers_to, finished.turns, mechanical)
    try:
        async with asyncio.timeout(NOTIFY_S_MAX):
            await engine.on_rollover(rollover)
    except Exception as error:  # noqa: BLE001 - an engine may come from anybody
        text = f"the context engine failed after a compression: {str(error) or repr(error)}"
        log.warning("session %s: the context engine failed: %s", entered.session_id, Private(error))
        incident = Incident(clock.now(), "context_engine", entered.session_id, text)
        await store.write(lambda uow: uow.incidents.add(incident))
