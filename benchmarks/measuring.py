"""Figures and how they are taken: processor time, several batches, the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apsw


@dataclass(frozen=True, slots=True)
class Figure:
    """A median, with the lowest and the highest batch: how far these lie apart says how busy the machine was."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        return cls(statistics.median(samples), min(samples), max(samples))

    @classmethod
    def exact(cls, value: float) -> Figure:
        return cls(value, value, value)


Calls = Sequence[Callable[[], Awaitable[Any]]]


async def cpu_ms(batches: AsyncIterator[Calls]) -> Figure:
    """Milliseconds of processor time a call, all threads included; what builds a batch is not counted."""
    samples = [await batch_cpu_ms(calls) async for calls in batches]
    # The first batch also pays for connections, statements and caches.
    return Figure.of(samples[1:])


async def batch_cpu_ms(calls: Calls) -> float:
    """The same for one batch; each call is awaited before the next."""
    begun = time.process_time()
    for call in calls:
        await call()
    return (time.process_time() - begun) * 1000 / len(calls)


class _CountingVfs(apsw.VFS):
    def __init__(self, base: str) -> None:
        self.base = base
        self.syncs = 0
        super().__init__("counting", base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _CountingFile(self, name, flags)


class _CountingFile(apsw.VFSFile):
    def __init__(self, vfs: _CountingVfs, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__(vfs.base, name, flags)

    def xSync(self, flags: int) -> None:
        self._vfs.syncs += 1
        super().xSync(flags)


@contextmanager
def counted_syncs() -> Iterator[Callable[[], int]]:
    """How often SQLite has asked the disk to make something durable, for every file opened inside."""
    vfs = _CountingVfs(apsw.vfs_names()[0])
    try:
        yield lambda: vfs.syncs
    finally:
        vfs.unregister()
