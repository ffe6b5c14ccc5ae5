"""Complete Everthread core on a folder, with only the model faked: store file, lanes, lifecycle, memory, plugins.

A second `CoreFixture` on the same folder acts as a restart or as another process.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from everthread import plugins as plugin_hooks
from everthread.adapters.lanes.local import LocalLanes
from everthread.adapters.sqlite.store import SqliteStore
from everthread.domain.boundary import Boundary, Compress
from everthread.domain.events import Delivery, ForgetScope, View
from everthread.domain.model import (
    Inbound,
    Message,
    NoteAction,
    NoteTarget,
    NoteVersion,
    Role,
    Session,
    SessionKey,
    SessionRef,
)
from everthread.domain.quota import Quotas
from everthread.domain.reset_policy import ResetPolicies
from everthread.lifecycle import BoundaryResult, CommittedTurn, Lifecycle, NoteChange
from everthread.lifecycle.forget import is_forgotten
from everthread.lifecycle.notes import write_note
from everthread.memory import MemoryManager, NoteFiles
from everthread.memory.delivery_results import Limits
from everthread.ports.memory import Capability, MemoryProvider, RecallItem
from everthread.store.derived_text import WRITTEN
from everthread.store.search_index import Hit
from everthread.store.unit_of_work import UnitOfWork

ME = "me"
CLI = SessionKey.parse("agent:main:cli:dm:1")
TELEGRAM = SessionKey.parse("agent:main:telegram:dm:42")
QUICK = Limits(attempt_s_max=0.1, backoff_s=0.01, backoff_s_max=0.05, breaker_s=0.05)
PATIENCE_S = 8.0

_houses = itertools.count(1)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Poll until the condition holds or the timeout expires."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what or condition}"
        await asyncio.sleep(0.002)


def opened(crossing: BoundaryResult) -> str:
    """Session that a boundary opened."""
    assert crossing.ref is not None, crossing.refusal
    return crossing.ref.session_id


class MovableClock:
    """Real time plus offsets. Set `ahead_s` to set the wall clock; call `advance` to let time pass."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._passed_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s

    def elapsed(self) -> float:
        return time.monotonic() + self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass, as a suspended machine does."""
        self.ahead_s += seconds
        self._passed_s += seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FailingClock(MovableClock):
    """A clock that fails once for the background loops of the lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.is_failing = False

    async def sleep(self, seconds: float) -> None:
        task = asyncio.current_task()
        if self.is_failing and task is not None and task.get_name() == "lanes:watch":
            self.is_failing = False
            raise RuntimeError("no more time")
        await asyncio.sleep(seconds)


# --- Providers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A hook call received by a provider."""

    hook: str
    ref: SessionRef
    delivery: Delivery
    text: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> str:
        return self.ref.session_id

    @property
    def view(self) -> View:
        return self.more["view"]


class _Book:
    """Calls of a provider in order of completion. `effects` deduplicates them by delivery key."""

    def __init__(self) -> None:
        self.begun: list[Call] = []
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def begin(self, call: Call) -> None:
        with self._lock:
            self.begun.append(call)

    def keep(self, call: Call) -> None:
        with self._lock:
            self.calls.append(call)

    @property
    def effects(self) -> list[Call]:
        return list({call.delivery.key: call for call in reversed(self.calls)}.values())[::-1]

    def of(self, hook: str, session: str | None = None) -> list[Call]:
        return [call for call in self.effects if call.hook == hook and session in (None, call.session)]

    def told(self, session: str) -> list[str]:
        """Deliveries of a session in order: turns and notes by text, others by hook name."""
        return [call.text or call.hook.removeprefix("on_session_") for call in self.effects if call.session == session]

    def words(self) -> str:
        return " ".join(call.text for call in self.effects)


class AsyncDiary(MemoryProvider):
    """Record all calls. `before` is awaited ahead of each entry and may raise or wait."""

    def __init__(self, name: str = "diary") -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL | Capability.FORGET
        self.book = _Book()
        self.before: Callable[[Call], Awaitable[None]] | None = None
        self.recalls: Callable[[str, SessionRef], Awaitable[list[RecallItem]]] | None = None

    async def _write(self, hook: str, ref: SessionRef, delivery: Delivery, text: str = "", **more: Any) -> None:
        call = Call(hook, ref, delivery, text, more)
        self.book.begin(call)
        if self.before is not None:
            await self.before(call)
        self.book.keep(call)

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._write("sync_turn", ref, delivery, user, assistant=assistant, **more)

    async def on_session_end(self, messages: Any, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._write("on_session_end", ref, delivery, messages=messages, **more)

    async def on_session_switch(self, new_session_id: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._write("on_session_switch", ref, delivery, new_session_id=new_session_id, **more)

    async def on_memory_write(
        self, action: str, target: str, content: str, metadata: Any, *, ref: SessionRef, delivery: Delivery
    ) -> None:
        await self._write("on_memory_write", ref, delivery, content, action=action, target=target, **metadata)

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._write("on_delegation", ref, delivery, task, result=result, **more)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        await self._write("forget", ref, delivery, "", scope=scope, fact=text, note_id=note_id)

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> list[RecallItem]:
        return await self.recalls(query, ref) if self.recalls is not None else []


class ThreadDiary(MemoryProvider):
    """The same provider with plain functions, which run in threads and may block."""

    def __init__(self, name: str = "thread") -> None:
        super().__init__()
        self.name = name
        self.capabilities = Capability.RECALL | Capability.FORGET
        self.book = _Book()
        self.before: Callable[[Call], None] | None = None
        self.recalls: Callable[[str, SessionRef], list[RecallItem]] | None = None

    def _write(self, hook: str, ref: SessionRef, delivery: Delivery, text: str = "", **more: Any) -> None:
        call = Call(hook, ref, delivery, text, more)
        self.book.begin(call)
        if self.before is not None:
            self.before(call)
        self.book.keep(call)

    def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self._write("sync_turn", ref, delivery, user, assistant=assistant, **more)

    def on_session_end(self, messages: Any, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self._write("on_session_end", ref, delivery, messages=messages, **more)

    def on_session_switch(self, new_session_id: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        self._write("on_session_switch", ref, delivery, new_session_id=new_session_id, **more)

    def on_memory_write(
        self, action: str, target: str, content: str, metadata: Any, *, ref: SessionRef, delivery: Delivery
    ) -> None:
        self._write("on_memory_write", ref, delivery, content, action=action, target=target, **metadata)

    def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        self._write("forget", ref, delivery, "", scope=scope, fact=text, note_id=note_id)

    def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> list[RecallItem]:
        return self.recalls(query, ref) if self.recalls is not None else []


Diary = AsyncDiary | ThreadDiary


class Gate:
    """Block a plain function until opened: `diary.before = gate.holds(lambda call: call.text == "two")`."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def holds(self, which: Callable[[Call], bool] = lambda call: True) -> Callable[[Call], None]:
        def before(call: Call) -> None:
            if which(call):
                self.wait()

        return before

    def wait(self) -> None:
        self.reached.set()
        # Longer than any wait in a test: a gate must never open by itself.
        assert self._open.wait(3 * PATIENCE_S), "the gate was never opened"

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Release waiting threads, even after a failed test.
        self.open()


# --- Core ------------------------------------------------------------------------------------------------------------


class CoreFixture:
    """One process. Use it as `async with CoreFixture(folder, *providers) as core`."""

    def __init__(
        self,
        folder: Path,
        *providers: object,
        plugins: tuple[object, ...] = (),
        policies: ResetPolicies | None = None,
        limits: Limits = QUICK,
        settings: dict[str, dict[str, Any]] | None = None,
        hook_s_max: float = 1.0,
        review_every: int = 0,
        quotas: Quotas | None = None,
    ) -> None:
        self.path = folder / "everthread.db"
        self.clock = MovableClock()
        self.holder = f"house{next(_houses):05}"
        self._numbers = itertools.count(1)
        self._providers = providers
        self._plugins = plugins
        self._policies = policies
        self._limits = limits
        self._settings = settings
        self._hook_s_max = hook_s_max
        self._review_every = review_every
        self._quotas = quotas

    def note_files(self, folder_of: Callable[[str], Path]) -> NoteFiles:
        """Make the note files of this process, wired as the runtime wires them."""

        def write(
            uow: UnitOfWork, action: NoteAction, target: NoteTarget, content: str, note_id: str, owner: str
        ) -> NoteVersion:
            change = NoteChange(action, target, content, note_id, imported=True)
            return write_note(uow, change, WRITTEN, owner=owner, ref=None, new_id=self.new_id(), now=self.clock.now())

        return NoteFiles(self.store, write, folder_of, is_forgotten)

    async def __aenter__(self) -> Self:
        self._stopped = False
        self.store = await SqliteStore.open(self.path)
        manager = plugin_hooks.load_plugins(self._plugins)
        self.lifecycle = Lifecycle(
            self.store,
            self.clock,
            self.new_id,
            holder=self.holder,
            policies=self._policies,
            hooks=plugin_hooks.implemented_hooks(manager),
            review_every=self._review_every,
            quotas=self._quotas,
        )
        self.lanes = LocalLanes(self.store, self.clock, self.holder, poll_s=0.01)
        self.memory = MemoryManager(
            self._providers,
            self.store,
            self.clock,
            self.lanes,
            random=lambda: 0.5,
            limits=self._limits,
            settings=self._settings,
        )
        await self.memory.start()
        self.hooks = plugin_hooks.HookRunner(
            self.store, self.clock, manager, wake=self.lanes.wake, hook_s_max=self._hook_s_max
        )
        self.lanes.serve(self.hooks.lane, self.hooks.drain)
        self.lanes.serve("expiry", self.lifecycle.expire_due)
        self._serving = asyncio.ensure_future(self.lanes.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop serving as a process does on a signal. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        await self.stop_lanes()
        await self.hooks.stop()
        await self.memory.shutdown()
        await self.store.aclose()

    async def stop_lanes(self) -> None:
        """Serve no lane any more. Safe to call twice."""
        if not self._serving.cancelled():
            assert not self._serving.done(), "the lanes have crashed"
            self._serving.cancel()
            await asyncio.wait({self._serving})

    def new_id(self) -> str:
        return f"{self.holder}-{next(self._numbers):06}"

    async def turn(self, key: SessionKey, text: str, *, owner: str = ME) -> CommittedTurn:
        """Run a whole turn: the message arrives and is answered."""
        await self.lifecycle.accept(Inbound(key, owner, text))
        ticket = await self.lifecycle.begin_turn(key)
        assert ticket is not None
        answer = f"re {text}"
        return await self.lifecycle.commit_turn(
            ticket, [Message(Role.USER, text), Message(Role.ASSISTANT, answer)], answer
        )

    async def cross(self, key: SessionKey, boundary: Boundary, *, owner: str = ME) -> BoundaryResult:
        return await self.lifecycle.cross(key, boundary, owner=owner)

    async def compression(self, key: SessionKey, summary: str = "what was said") -> Compress:
        """Build a compression of all turns so far."""
        ref = await self.at(key)
        session = await self.session(ref.session_id)
        return Compress(ref.session_id, ref.generation, summary, session.last_turn)

    async def note(self, content: str, ref: SessionRef | None = None, *, owner: str = ME) -> NoteVersion:
        change = NoteChange(NoteAction.ADD, NoteTarget.MEMORY, content)
        return await self.lifecycle.write_note(change, owner=owner, ref=ref)

    async def at(self, key: SessionKey) -> SessionRef:
        ref = await self.lifecycle.current(key)
        assert ref is not None
        return ref

    async def session(self, session_id: str) -> Session:
        session = await self.store.read(lambda uow: uow.sessions.get(session_id))
        assert session is not None
        return session

    async def search(self, owner: str, query: str, *, limit: int) -> tuple[Hit, ...]:
        await self.store.index()
        return await self.store.read(lambda uow: uow.search.search(owner, query, limit=limit))

    async def shown(self, session_id: str) -> list[str]:
        """User messages of the turns that a session shows."""
        session = await self.session(session_id)
        view = await self.store.read(lambda uow: uow.turns.view(session))
        return [turn.user_text for turn in view.turns]

    async def settled(self) -> None:
        """Wait until no provider and no loaded plugin has pending entries."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            waiting = [status.lanes.waiting_entries for status in await self.memory.journal.status()]
            hooks = await self.store.read(lambda uow: uow.leases.hooks(1, self.hooks.names))
            if not any(waiting) and not hooks:
                return
            await asyncio.sleep(0.003)
        raise AssertionError(f"something still waits: {await self.memory.journal.status()}, hooks {hooks}")

    async def incidents(self) -> list[str]:
        found = await self.store.read(lambda uow: uow.incidents.newest(100))
        return [f"{incident.source}: {incident.text}" for incident in found]

    async def reported(self, source: str, text: str) -> None:
        """Wait until this failure is reported."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(source in incident and text in incident for incident in await self.incidents()):
            assert time.monotonic() < deadline, f"{source}: {text} was never reported"
            await asyncio.sleep(0.003)

    async def later(self, seconds: float) -> None:
        """Let time pass without waiting."""
        self.clock.advance(seconds)
        self.lanes.wake("expiry")

    async def lowered(self, session_id: str) -> None:
        """Wait until the session's stored activity is not ahead of the clock."""
        deadline = time.monotonic() + PATIENCE_S
        while (ahead_s := (await self.session(session_id)).active_at - self.clock.now()) > 0:
            assert time.monotonic() < deadline, f"the activity of {session_id} is {ahead_s:.0f} s ahead"
            await asyncio.sleep(0.003)

    async def ended(self, session_id: str, reason: str) -> None:
        """Wait until the session has ended for this reason."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := (await self.session(session_id)).end_reason) != reason:
            assert time.monotonic() < deadline, f"{session_id} has not ended: {found}"
            await asyncio.sleep(0.003)
