"""Simulated environment: every fault can occur, deterministically by seed.

Time is virtual: waiting costs nothing. Processes are real `Lifecycle`, `MemoryManager` and `LocalLanes` objects on real
SQL. The event loop, the clock, the store's front and the providers' back ends are simulated. A process can be killed at
any await and between any two statements, stopped and continued past its leases, and made to see a full disk.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from everthread.adapters.sqlite.connection import Connection, RawExecute, SqliteDatabase
from everthread.domain.errors import DiskFull, StoreBusy, StoreError
from everthread.store.unit_of_work import NotInline, UnitOfWork
from tests.simulator.coverage import CRASH_AFTER, CRASH_BEFORE, FROZEN, REPEATED, STORE_ERROR, Coverage, boundary_of
from tests.simulator.event_loop import PROCESS, SimLoop, sleep
from tests.simulator.operations import LowerTimes, SyncNotes

T = TypeVar("T")

EPOCH = 1_800_000_000.0
LATENCY_S = 0.05
LEASE_S = 15.0


class Killed(asyncio.CancelledError):
    """The process is dead: its further calls have no effect."""


@dataclass
class Faults:
    """Faults that are active or pending."""

    extended: bool = False
    """With all kinds of faults. Histories of version 1 have only those of the first simulator."""
    busy: int = 0
    full: int = 0
    deaths: list[str] = field(default_factory=list[str])
    """Where the next process that crosses a boundary is killed: `CRASH_BEFORE` or `CRASH_AFTER`. With ` of files`: the
    next process that synchronises note files.
    """
    freezes: list[float] = field(default_factory=list[float])
    """For how long the next process that asks for a boundary is stopped."""
    hooks: list[str] = field(default_factory=list[str])
    """Faults of the next calls of a plugin."""
    provider: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    hit: Counter[str] = field(default_factory=Counter[str])
    coverage: Coverage = field(default_factory=Coverage)


OPERATION: ContextVar[object | None] = ContextVar("operation", default=None)


class SimClock:
    """Wall clock: virtual time plus an offset that moves it forward or back."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset = EPOCH
        self.was_set = False
        self.set_at = -1.0
        """Elapsed time at which the wall clock was last set."""
        self.suspended_s = 0.0
        """Time in which the machine was suspended. Timers stood still."""
        self.set_forward_at = -1.0
        """Elapsed time at which the wall clock was last set forward."""

    def now(self) -> float:
        return self._loop.time() + self.offset

    def elapsed(self) -> float:
        return self._loop.time() + self.suspended_s

    def set_by(self, seconds: float) -> None:
        """Set the wall clock forward or back. No time passes."""
        self.offset += seconds
        self.was_set = True
        self.set_at = self.elapsed()
        if seconds > 0:
            self.set_forward_at = self.elapsed()

    def suspend(self, seconds: float) -> None:
        """Let time pass without a timer of any process."""
        self.offset += seconds
        self.was_set = True
        self.suspended_s += seconds

    async def sleep(self, seconds: float) -> None:
        process = PROCESS.get()
        await sleep(seconds)
        if process is not None:
            await process.pause()


class SimProcess:
    """A simulated process: its tasks, and its life cycle."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.dead = False
        self.frozen_until = 0.0
        self.was_stopped = False
        """It was stopped and continued in the middle of a request, so that others may have considered it dead."""
        self.kill_after_statements: int | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        # Of its own, so that histories of version 1 draw the same numbers as ever.
        self.store_random = random.Random(seed ^ 0x1712)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        token = PROCESS.set(self)
        try:
            return asyncio.ensure_future(work)
        finally:
            PROCESS.reset(token)

    async def pause(self) -> None:
        """Simulate a slow external operation. A stopped process waits here until it is continued."""
        # Without `check`: this is called thousands of times in a schedule.
        if self.dead:
            raise Killed
        dice = self.random.random()
        if dice > 0.5:
            await sleep(0.0 if dice < 0.65 else dice * LATENCY_S)
        if self.frozen_until:
            await self._thaw()
        if self.dead:
            raise Killed

    async def _thaw(self) -> None:
        loop = asyncio.get_running_loop()
        while (left_s := self.frozen_until - loop.time()) > 0.0:
            # The process may be continued early.
            await sleep(min(left_s, 1.0))

    async def glance(self) -> None:
        """Simulate an inline lookup. It rarely takes time, but a stopped process waits here."""
        if self.frozen_until or self.random.random() < 0.1:
            await self.pause()
        if self.dead:
            raise Killed

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
        self._total_changes = cast(Any, connection).total_changes
        self._process = process
        self._faults = faults
        self._observe = observe
        # One cursor for all statements: to create one takes as long as a short statement.
        self._run: RawExecute = connection.cursor().execute
        self._tables = UnitOfWork(SqliteDatabase(connection, self._execute))
        self._crossed: list[str] = []
        self._lowered: LowerTimes | None = None

    @property
    def damage(self) -> str:
        return ""

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Not always the first transaction of a request: one to forget has several, and not the first crosses.
        is_due = self._faults.freezes and boundary_of(OPERATION.get())
        if is_due and self._process.store_random.random() < 0.5:
            self._process.frozen_until = began + self._faults.freezes.pop()
            self._process.was_stopped = True
        await self._process.pause()
        result, crossed = self._commit(work, began), self._crossed
        # Committed, but the caller has no result yet.
        await self._process.pause()
        if crossed and loop.time() - began >= LEASE_S:
            for boundary in crossed:
                self._faults.coverage.hit(boundary, FROZEN)
        return result

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        """Commit at once if nobody else writes, and continue without a pause. Work that leaves the event loop is rolled
        back and done again later, as if by the writer thread.
        """
        if not self._faults.extended or self._process.store_random.random() < 0.5:
            return await self.write(work)
        await self._process.glance()
        self._tables.is_inline = True
        try:
            return self._commit(work, asyncio.get_running_loop().time())
        except NotInline:
            self._faults.hit["inline write repeated"] += 1
        finally:
            self._tables.is_inline = False
        return await self.write(work)

    def _commit(self, work: Callable[[UnitOfWork], T], began: float) -> T:
        """Run one transaction, and report it."""
        self._refuse()
        self._crossed, self._lowered = [], None
        self._run("SAVEPOINT unit")
        try:
            result = work(self._tables)
            if self._faults.extended and not self._tables.is_inline and self._process.store_random.random() < 0.04:
                result = self._repeat(work)
            if self._faults.deaths:
                self._die(CRASH_BEFORE)
        except Killed:
            self._undo()
            for boundary in {*self._crossed, boundary_of(OPERATION.get())} - {""}:
                self._faults.coverage.hit(boundary, CRASH_BEFORE)
            raise
        except BaseException:
            self._undo()
            raise
        self._run("RELEASE unit")
        if self._lowered is not None:
            self._faults.hit["times lowered"] += 1
            self._observe(self._lowered, None)
        operation = OPERATION.get()
        self._faults.coverage.began = began
        if operation is not None or self._crossed:
            self._observe(operation, result)
        if self._faults.deaths:
            self._die(CRASH_AFTER)
        return result

    def _repeat(self, work: Callable[[UnitOfWork], T]) -> T:
        """Repeat a transaction that could not be committed, which changes nothing else."""
        self._undo()
        self._faults.hit["transaction repeated"] += 1
        for boundary in self._crossed:
            self._faults.coverage.hit(boundary, REPEATED)
        self._crossed, self._lowered = [], None
        self._run("SAVEPOINT unit")
        return work(self._tables)

    def _undo(self) -> None:
        self._run("ROLLBACK TO unit")
        self._run("RELEASE unit")

    def _die(self, where: str) -> None:
        """Kill the process at a boundary, if it is to die there."""
        name = f"{where} of files" if isinstance(OPERATION.get(), SyncNotes) else where if self._crossed else ""
        if name in self._faults.deaths:
            self._faults.deaths.remove(name)
            self._faults.hit[f"kill {name}"] += 1
            self._faults.hit["kill"] += 1
            self._process.kill()
            if where == CRASH_AFTER:
                for boundary in self._crossed:
                    self._faults.coverage.hit(boundary, CRASH_AFTER)
            raise Killed

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
        return self._total_changes()

    async def tidy(self) -> bool:
        return True

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        raise StoreError("a simulated store is in no file that could be copied")

    async def aclose(self) -> None: ...

    def _refuse(self) -> None:
        if (self._faults.busy > 0 or self._faults.full > 0) and (boundary := boundary_of(OPERATION.get())):
            self._faults.coverage.hit(boundary, STORE_ERROR)
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
            self._crossed.append(parameters[0])
        elif sql.startswith("UPDATE sessions SET active_at = ? WHERE active_at > ?"):
            self._lowered = LowerTimes(*parameters)
        return self._run(sql, parameters)


Observe = Callable[[object | None, object], None]
