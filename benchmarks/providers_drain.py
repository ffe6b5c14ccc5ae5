"""Deliver 100,000 entries in a separate process; print its memory growth in MB and the entries per second."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.providers_delivery import BACKLOG, BACKLOG_SESSIONS, backlog, drain
from benchmarks.store_fixture import StoreFixture
from everthread.adapters.sqlite.store import SqliteStore
from everthread.ports.memory import MemoryProvider


class CountingProvider(MemoryProvider):
    """Counts turns and stores nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "remote"
        self.delivered_turns = 0

    async def sync_turn(self, user: str, assistant: str, **more: Any) -> None:
        self.delivered_turns += 1


async def _fill(path: Path) -> None:
    store = await SqliteStore.open(path)
    await backlog(StoreFixture(path, store), BACKLOG_SESSIONS, BACKLOG)
    await store.aclose()


async def _drain(path: Path) -> tuple[float, float]:
    store = await SqliteStore.open(path)
    provider = CountingProvider()
    before, start = _peak_mb(), time.monotonic()
    await drain(StoreFixture(path, store), provider)
    seconds = time.monotonic() - start
    grown = _peak_mb() - before
    await store.aclose()
    assert provider.delivered_turns == BACKLOG, provider.delivered_turns
    return grown, BACKLOG / seconds


def _peak_mb() -> float:
    """Return the peak memory of this process. `getrusage` would include the peak of its parent before the exec."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def main() -> None:
    path = Path(sys.argv[1]) / "everthread.db"
    if len(sys.argv) == 2:
        # Another process fills the store, so that this one's peak shows only the delivery.
        import subprocess

        subprocess.run([sys.executable, "-m", "benchmarks.providers_drain", sys.argv[1], "fill"], check=True)
        print(*asyncio.run(_drain(path)))
    else:
        asyncio.run(_fill(path))


if __name__ == "__main__":
    main()
