"""The store of one process: every unit of work is a savepoint, and the process can be killed at any point of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from everthread.adapters.sqlite.connection import Connection, SqliteDatabase
from everthread.domain.errors import StoreError
from everthread.store.unit_of_work import UnitOfWork

T = TypeVar("T")


class Crashed(asyncio.CancelledError):
    """The process is dead. A `CancelledError`, because handlers of `Exception` must not catch it."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The moment at which the process dies: before or after the commit of its n-th unit of work, or before one of its
    statements.
    """

    unit: int
    when: str
    statement: int = 0

    @property
    def label(self) -> str:
        return f"{self.when} {self.statement}" if self.statement else self.when

    def __str__(self) -> str:
        return f"killed {self.label} of unit {self.unit}"


BEFORE_COMMIT = "before commit"
AFTER_COMMIT = "after commit"
BEFORE_STATEMENT = "before statement"

Observe = Callable[[object], None]
Interruption = Callable[[], Awaitable[None]]


class SteppedStore:
    """One process's handle on the shared database, with at most one crash or interruption during a step."""

    def __init__(self, connection: Connection, observe: Observe) -> None:
        self._connection = connection
        self._observe = observe
        self._tables = UnitOfWork(SqliteDatabase(connection, self._execute))
        self.prepare(None)

    def prepare(self, crash: CrashPoint | None) -> None:
        """Begin a step."""
        self._crash = crash
        self._interrupt_at = 0
        self._interruption: Interruption | None = None
        self.accesses = 0
        self.statements: list[int] = []
        """Number of statements in each unit of work so far."""
        self.dead = False

    def interrupt(self, access: int, interruption: Interruption) -> None:
        """Run `interruption` before the n-th access of this step."""
        self._interrupt_at, self._interruption = access, interruption

    @property
    def damage(self) -> str:
        return ""

    async def write(self, work: Callable[[UnitOfWork], T]) -> T:
        await self._access()
        self.statements.append(0)
        self._connection.execute("SAVEPOINT unit")
        try:
            result = work(self._tables)
            self._die_if(BEFORE_COMMIT)
        except BaseException:
            self._connection.execute("ROLLBACK TO unit")
            self._connection.execute("RELEASE unit")
            raise
        self._connection.execute("RELEASE unit")
        self._observe(result)
        self._die_if(AFTER_COMMIT)
        return result

    async def write_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.write(work)

    async def read(self, work: Callable[[UnitOfWork], T]) -> T:
        await self._access()
        return work(self._tables)

    async def read_inline(self, work: Callable[[UnitOfWork], T]) -> T:
        return await self.read(work)

    async def index(self) -> None:
        await self.write(lambda uow: uow.search.index())

    async def changed(self) -> int:
        return next(iter(self._connection.execute("SELECT total_changes()")))[0]

    async def tidy(self) -> bool:
        return True

    async def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        raise StoreError("an explored store is in no file that could be copied")

    async def aclose(self) -> None: ...

    async def _access(self) -> None:
        if self.dead:
            raise Crashed
        self.accesses += 1
        if self._interruption is not None and self.accesses == self._interrupt_at:
            await self._interruption()

    def _die_if(self, when: str) -> None:
        crash = self._crash
        if crash is not None and (crash.unit, crash.when) == (len(self.statements), when):
            self._die()

    def _die(self) -> None:
        self.dead = True
        raise Crashed

    def _execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Iterator[tuple[Any, ...]]:
        if self.statements:
            self.statements[-1] += 1
            crash = self._crash
            if crash is not None and crash.statement and crash.unit == len(self.statements):
                if crash.statement == self.statements[-1]:
                    self._die()
        return self._connection.execute(sql, parameters)
