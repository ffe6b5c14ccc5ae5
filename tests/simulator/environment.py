"""Simulated environment: every fault can occur, deterministically by seed.

Time is virtual: waiting costs nothing. Processes are real `Lifecycle`, `MemoryManager` and `LocalLanes` objects on real
SQL. The event loop, the clock, the store's front and the providers' back ends are simulated. A process can be killed at
any await and between any two statements, stopped and continued past its leases, and made to see a full disk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, TypeVar

from everthread.adapters.sqlite.connection import Connection, RawExecute, SqliteDatabase, connect
from everthread.adapters.sqlite.migrate import migrate
from everthread.domain.errors import DiskFull, Rejected, StoreBusy, StoreError, Unavailable
from everthread.domain.events import Delivery, ForgetScope
from everthread.domain.model import Message, SessionRef
from everthread.ports.memory import Capability, MemoryProvider, RecallItem, Scorecard
from everthread.store.unit_of_work import UnitOfWork
from tests.simulator.operations import LowerTimes

T = TypeVar("T")

EPOCH = 1_800_000_000.0
LATENCY_S = 0.05


class Killed(asyncio.CancelledError):
    """The process is dead: its further calls have no effect."""


class SimHandle:
    """A callback of the loop, without the bookkeeping of asyncio's handles, which debug mode needs."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class SimLoop(asyncio.BaseEventLoop):
    """Event loop on virtual time, in one thread and without I/O, so that the order of tasks depends only on the seed.
    It implements no more than the simulation needs, because much CPU time of a schedule is spent here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._soon: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timers_set = 0
        self._stopping = False
        self.set_task_factory(_owned_task)
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._time

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        handle = SimHandle(callback, args, context)
        self._soon.append(handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        timer = SimHandle(callback, args, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run the function later in the same thread."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does, for whoever waits
                future.set_exception(error)

        self.call_soon(run)
        return future

    def _run_once(self) -> None:
        """Advance time to the next timer instead of waiting for sockets, until somebody stops the loop."""
        soon, timers = self._soon, self._timers
        while True:
            while timers and (timers[0][0] <= self._time or not soon):
                when, _, timer = heappop(timers)
                if not timer.is_cancelled:
                    if when > self._time:
                        self._time = when
                    soon.append(timer)
            if not soon:
                raise RuntimeError("the simulated world stands still: everything waits for something that never comes")
            for _ in range(len(soon)):
                handle = soon.popleft()
                if not handle.is_cancelled:
                    # An error in a callback does not stop the loop. Tasks keep their own errors.
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except (Exception, asyncio.CancelledError):  # noqa: BLE001, S110 - as asyncio does
                        pass
            if self._stopping:
                return


PROCESS: ContextVar[SimProcess | None] = ContextVar("process", default=None)
OPERATION: ContextVar[object | None] = ContextVar("operation", default=None)


def _owned_task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    """Assign every task to the process that started it, so that it dies with the process."""
    task = asyncio.Task(coro, loop=loop, **kwargs)
    process = PROCESS.get()
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


@dataclass
class Faults:
    """Faults that are active or pending."""

    busy: int = 0
    full: int = 0
    provider: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    hit: Counter[str] = field(default_factory=Counter[str])


_TEMPLATE: list[bytes] = []


def fresh_database() -> Connection:
    """Create an empty in-memory database from a template."""
    connection: Any = connect(":memory:")
    # Nobody reads the freed pages of a database in memory.
    connection.execute("PRAGMA secure_delete = OFF")
    if not _TEMPLATE:
        migrate(connection, ":memory:")
        _TEMPLATE.append(connection.serialize("main"))
    connection.deserialize("main", _TEMPLATE[0])
    return connection


class SimClock:
    """Wall clock: virtual time plus an offset that moves it forward or back."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset = EPOCH

    def now(self) -> float:
        return self._loop.time() + self.offset

    def elapsed(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        process = PROCESS.get()
        await asyncio.sleep(seconds)
        if process is not None:
            await process.pause()


class SimProcess:
    """A simulated process: its tasks, and its life cycle."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.dead = False
        self.frozen_until = 0.0
        self.kill_after_statements: int | None = None
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        token = PROCESS.set(self)
        try:
            return asyncio.ensure_future(work)
        finally:
            PROCESS.reset(token)

    async def pause(self) -> None:
        """Simulate a slow external operation. A stopped process waits here until it is continued."""
        self.check()
        dice = self.random.random()
        if dice > 0.5:
            await asyncio.sleep(0.0 if dice < 0.65 else dice * LATENCY_S)
        loop = asyncio.get_running_loop()
        while (left_s := self.frozen_until - loop.time()) > 0.0:
            # The process may be continued early.
            await asyncio.sleep(min(left_s, 1.0))
        self.check()

    async def glance(self) -> None:
        """Simulate an inline lookup. It rarely takes time, but a stopped process waits here."""
        if self.frozen_until or self.random.random() < 0.1:
            await self.pause()
        self.check()

    def check(self) -> None:
        if self.dead:
            raise Killed

    def kill(self) -> None:
        self.dead = True
        for task in list(self.tasks):
            task.cancel()


class SimStore:
    """One process's handle on the shared database. Units of work are serial and atomic."""

    def __init__(self, connection: Connection, process: SimProcess, faults: Faults, observe: Observe) -> None:
        self._connection = connection
        self._process = process
        self._faults = faults
        self._observe = observe
        # One cursor for all statements: to create one takes as long as a short statement.
        self._run: RawExecute = connection.cursor().execute
        self._tables = UnitOfWork(SqliteDatabase(connection, self._execute))
        self._crossed = False
        self._lowered: LowerTimes | None = None

    @property
    def damage(self) -> str:
        return ""

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        await self._process.pause()
        self._refuse()
        self._crossed, self._lowered = False, None
        self._run("BEGIN")
        try:
            result = work(self._tables)
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")
        if self._lowered is not None:
            self._faults.hit["times lowered"] += 1
            self._observe(self._lowered, None)
        operation = OPERATION.get()
        if operation is not None or self._crossed:
            self._observe(operation, result)
        # Committed, but the caller has no result yet.
        await self._process.pause()
        return result

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.write(work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        await self._process.pause()
        return work(self._tables)

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        await self._process.glance()
        return work(self._tables)

    async def index(self) -> None:
        await self.write(lambda uow: uow.search.index())

    async def changed(self) -> int:
        await self._process.glance()
        return self._connection.execute("SELECT total_changes()").__next__()[0]

    async def tidy(self) -> bool:
        return True

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        raise StoreError("a simulated store is in no file that could be copied")

    async def aclose(self) -> None: ...

    def _refuse(self) -> None:
        if self._faults.busy > 0:
            self._faults.busy -= 1
            self._faults.hit["store busy"] += 1
            raise StoreBusy("simulated")
        if self._faults.full > 0:
            self._faults.full -= 1
            self._faults.hit["disk full"] += 1
            raise DiskFull("simulated")

    def _execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]:
        left = self._process.kill_after_statements
        if left is not None:
            if left <= 0:
                self._faults.hit["kill between statements"] += 1
                self._process.kill()
                raise Killed
            self._process.kill_after_statements = left - 1
        if sql.startswith("INSERT INTO boundaries"):
            self._crossed = True
        elif sql.startswith("UPDATE sessions SET active_at = ? WHERE active_at > ?"):
            self._lowered = LowerTimes(*parameters)
        return self._run(sql, parameters)


Observe = Callable[[object | None, object], None]


@dataclass(frozen=True, slots=True)
class Effect:
    """An entry stored by a back end: hook, session ref and facts."""

    kind: str
    ref: SessionRef
    delivery: Delivery
    facts: dict[str, Any]


class Backend:
    """Back end of a provider. It outlives every process and deduplicates by delivery key."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.effects: list[Effect] = []
        self.keys: set[str] = set()
        self.rejected: set[str] = set()
        self.attempts = 0

    def apply(self, effect: Effect) -> None:
        if effect.delivery.key not in self.keys:
            self.keys.add(effect.delivery.key)
            self.effects.append(effect)


class SimProvider(MemoryProvider):
    """Provider in one process, with faults of networks and servers."""

    def __init__(
        self, backend: Backend, process: SimProcess, faults: Faults, began: Callable[[str, str], None]
    ) -> None:
        super().__init__()
        self.name = backend.name
        self.capabilities = Capability.RECALL | Capability.FORGET | Capability.DEDUPLICATES
        self.scorecard = Scorecard("done", "done", "done")
        self._backend = backend
        self._process = process
        self._faults = faults
        self._began = began

    async def prefetch(self, query: str, *, ref: SessionRef, limit: int) -> Sequence[RecallItem]:
        await self._process.pause()
        return (RecallItem(f"for {ref.session_id} of {ref.owner}"),)

    async def sync_turn(self, user: str, assistant: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._take("turn", ref, delivery, text=user, number=more["turn"])

    async def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        ref: SessionRef,
        delivery: Delivery,
        **more: Any,
    ) -> None:
        if more.get("rewound"):
            await self._take("rewind", ref, delivery, turns=more["turns"])
        else:
            facts = {"parent": parent_session_id, "reset": reset, "reason": more["reason"]}
            await self._take("opened", ref, delivery, id=new_session_id, **facts)

    async def on_session_end(
        self, messages: Sequence[Message], *, ref: SessionRef, delivery: Delivery, **more: Any
    ) -> None:
        shown = tuple(turn.user_text for turn in more["view"].turns)
        await self._take("close", ref, delivery, shown=shown, missing=more["missing"])

    async def on_memory_write(
        self,
        action: str,
        target: str,
        content: str,
        metadata: Mapping[str, Any],
        *,
        ref: SessionRef,
        delivery: Delivery,
    ) -> None:
        await self._take("note", ref, delivery, text=content, note=metadata["note_id"], version=metadata["version"])

    async def on_delegation(self, task: str, result: str, *, ref: SessionRef, delivery: Delivery, **more: Any) -> None:
        await self._take("delegation", ref, delivery, text=task)

    async def forget(
        self, scope: ForgetScope, *, ref: SessionRef, delivery: Delivery, text: str = "", note_id: str = ""
    ) -> None:
        await self._take("forget", ref, delivery, scope=scope.value, text=text)

    async def _take(self, kind: str, ref: SessionRef, delivery: Delivery, **facts: Any) -> None:
        self._began(self.name, self._process.name)
        self._backend.attempts += 1
        waiting = self._faults.provider.get(self.name)
        fault = waiting.pop() if waiting else ""
        if fault:
            self._faults.hit[f"provider {fault}"] += 1
        await self._process.pause()
        await self._fail_before(fault, delivery)
        self._backend.apply(Effect(kind, ref, delivery, facts))
        if fault == "lost":
            raise Unavailable(self.name, "simulated lost acknowledgement")
        await self._process.pause()

    async def _fail_before(self, fault: str, delivery: Delivery) -> None:
        if fault == "error":
            raise Unavailable(self.name, "simulated outage")
        if fault == "hang":
            await asyncio.get_running_loop().create_future()
        if fault == "bug":
            raise ValueError("simulated bug")
        if fault == "slow":
            await asyncio.sleep(self._process.random.uniform(0.5, 4.0))
            self._process.check()
        if fault == "reject" and delivery.key not in self._backend.keys:
            self._backend.rejected.add(delivery.key)
            raise Rejected(self.name, "simulated rejection")
