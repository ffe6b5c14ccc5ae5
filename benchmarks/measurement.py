"""Take measurements: CPU time, several batches, the median."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw


@dataclass(frozen=True, slots=True)
class Figure:
    """A median with the lowest and highest batch; their spread shows how busy the machine was."""

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
    """Measure CPU milliseconds per call of all threads, without the time that builds a batch."""
    samples = [await batch_cpu_ms(calls) async for calls in batches]
    # The first batch also pays for connections, statements and caches.
    return Figure.of(samples[1:])


async def batch_cpu_ms(calls: Calls) -> float:
    """Measure one batch; each call is awaited before the next."""
    start = time.process_time()
    for call in calls:
        await call()
    return (time.process_time() - start) * 1000 / len(calls)


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
def count_syncs() -> Iterator[Callable[[], int]]:
    """Count the fsyncs of SQLite for every file opened inside the context."""
    vfs = _CountingVfs(apsw.vfs_names()[0])
    try:
        yield lambda: vfs.syncs
    finally:
        vfs.unregister()


# --- Command line ------------------------------------------------------------------------------------------------

Steps = Mapping[str, Callable[[Path], Awaitable[dict[str, Figure]]]]


def run(program: str, description: str | None, steps: Steps, targets: Mapping[str, float]) -> None:
    """Run the measurements, each in its own folder, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", choices=list(steps), default=list(steps), metavar="NAME")
    options = parser.parse_args()
    figures = asyncio.run(_measure(steps, options.only, silent=options.json))
    print(json.dumps(_as_json(figures, targets), indent=2) if options.json else _as_table(figures, targets))


async def _measure(steps: Steps, names: Sequence[str], *, silent: bool) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for number, name in enumerate(names, 1):
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="everthread-bench-") as folder:
            figures |= await steps[name](Path(folder))
        if not silent:
            print(f"[{number}/{len(names)}] {name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return figures


def _as_json(figures: Mapping[str, Figure], targets: Mapping[str, float]) -> dict[str, object]:
    result: dict[str, object] = {name: None for name in targets}
    result |= {name: round(figure.value, 4) for name, figure in figures.items()}
    result["spread"] = {name: [round(f.low, 4), round(f.high, 4)] for name, f in figures.items() if f.low < f.high}
    result["python"] = platform.python_version()
    return result


def _as_table(figures: Mapping[str, Figure], targets: Mapping[str, float]) -> str:
    lines = [f"{'figure':<28}{'median':>10}{'lowest':>10}{'highest':>10}{'target':>10}"]
    for name, figure in figures.items():
        target = f"{targets[name]:g}" if name in targets else ""
        lines.append(f"{name:<28}{figure.value:>10.3f}{figure.low:>10.3f}{figure.high:>10.3f}{target:>10}")
    return "\n".join(lines)
