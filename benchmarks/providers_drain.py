"""Delivers 100,000 entries in a process of its own, and prints by how many MB it has grown, and how many a second."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.providers_delivery import BACKLOG, BACKLOG_SESSIONS, backlog, drained
from benchmarks.stage import Stage
from everthread.adapters.sqlite.store import SqliteStore
from everthread.ports.memory import MemoryProvider


class Taking(MemoryProvider):
    """Counts, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "remote"
        self.taken = 0

    async def sync_turn(self, user: str, assistant: str, **more: Any) -> None:
        self.taken += 1


async def _fill(path: Path) -> None:
    store = await SqliteStore.open(path)
    await backlog(Stage(path, store), BACKLOG_SESSIONS, BACKLOG)
    await store.aclose()


async def _drain(path: Path) -> tuple[float, float]:
    store = await SqliteStore.open(path)
    provider = Taking()
    before, begun = _peak_mb(), time.monotonic()
    await drained(Stage(path, store), provider)
    seconds = time.monotonic() - begun
    grown = _peak_mb() - before
    await store.aclose()
    assert provider.taken == BACKLOG, provider.taken
    return grown, BACKLOG / seconds


def _peak_mb() -> float:
    """Of this program. `getrusage` would count the peak of whoever started it as well."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main() -> None:
    path = Path(sys.argv[1]) / "everthread.db"
    if len(sys.argv) == 2:
        # Filled by another process, so that what filling took is not in this one's peak.
        import subprocess

        subprocess.run([sys.executable, "-m", "benchmarks.providers_drain", sys.argv[1], "fill"], check=True)
        print(*asyncio.run(_drain(path)))
    else:
        asyncio.run(_fill(path))


if __name__ == "__main__":
    main()
