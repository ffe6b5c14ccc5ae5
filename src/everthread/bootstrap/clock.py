"""The real clock, and ids made from it and from real randomness."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

# These clocks count while the machine is suspended: the first on Linux, the second on macOS.
_CLOCK_IDS = [getattr(time, name) for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC") if hasattr(time, name)]
_elapsed: Callable[[], float] = partial(time.clock_gettime, _CLOCK_IDS[0]) if _CLOCK_IDS else time.monotonic


class SystemClock:
    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return _elapsed()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def loop_time() -> float:
    """Return the monotonic time of the event loop, for timeouts: the system clock may be set meanwhile."""
    return asyncio.get_running_loop().time()


def ulids(now: Callable[[], float], random_bits: Callable[[int], int] = secrets.randbits) -> Callable[[], str]:
    """Return a generator function of ids: 26 characters that sort by time.

    Each id is greater than the one before, from any thread and even if the clock goes back.
    """
    lock = threading.Lock()
    last = 0

    def new_id() -> str:
        nonlocal last
        with lock:
            last = value = max(last + 1, int(now() * 1000) << 80 | random_bits(80))
        return "".join(_CROCKFORD[value >> shift & 31] for shift in range(125, -1, -5))

    return new_id
