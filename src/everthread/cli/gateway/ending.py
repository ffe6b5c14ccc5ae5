"""Being told to end: once, and it is done in good order within a bound; twice, and it is done at once.

Whatever is left undone is stored, so the end may come at any point. The bound holds even if something holds the loop: a
thread sees to that, which does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

from everthread.cli.exits import INTERRUPTED

LAST_S = 0.8
"""How long after its bound an end is made short."""
_ENDS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Hears the signals while it is entered."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s = bound_s
        self._read, self._write = os.pipe()
        self._begun = False
        self._told: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        self._watching = threading.Thread(target=self._watch, name="ending", daemon=True)
        self._watching.start()
        self._before = {number: signal.signal(number, self._hear) for number in _ENDS}
        # A terminal that goes away takes no service with it.
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _heed_not)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        # The thread reads this, or the end behind it.
        os.write(self._write, b".")
        os.close(self._write)
        self._watching.join()
        os.close(self._read)

    def leave(self) -> None:
        """Be gone, if told to: all is stored and closed. What is left to do is to free memory, and to wait for others'
        threads, which may never end.
        """
        if self._begun:
            sys.stdout.flush()
            os._exit(0)

    def told(self) -> asyncio.Event:
        """Set once the program has been told to end."""
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        if self._begun:
            self._told.set()
        return self._told

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # Between any two steps of the program: nothing here may wait for a lock.
        if self._begun:
            os._exit(INTERRUPTED)
        self._begun = True
        os.write(self._write, b"!")
        if self._loop is not None and self._told is not None:
            self._loop.call_soon_threadsafe(self._told.set)

    def _watch(self) -> None:
        if os.read(self._read, 1) == b"!" and not select.select([self._read], [], [], self._bound_s + LAST_S)[0]:
            os.write(2, b"everthread: stopped in the middle; what was not finished is gone on with at the next start\n")
            os._exit(0)


def _heed_not(number: int, frame: FrameType | None) -> None:
    """Unlike a signal that is ignored, one that is heard is not ignored by children as well."""
