"""Which processes of a home are gone for certain: each holds a lock on a file of its own for as long as it lives.

The system lets go of a lock with its process, however that ends. No process numbers are compared, so it doesn't matter
that they are given anew, nor that another container counts its own; whoever shares the store's file shares the system
that keeps the locks. A process that has no such file is never said to be gone: its lease has to run out.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger("everthread")

_READY = ".alive"


class ProcessLocks:
    """The files of one home, and the lock of one process."""

    def __init__(self, folder: Path, holder: str) -> None:
        self._folder = folder
        self._path = folder / f"{holder}{_READY}"
        self._beginning = folder / f"{holder}.new"
        self._lock: int | None = None

    def enter(self) -> None:
        """Be there. Where files can't be locked, one is there by lease alone."""
        if self._lock is not None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._beginning, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its name it is seen locked only: otherwise somebody might take a beginning for an end.
            self._beginning.rename(self._path)
        except OSError as error:
            log.info("no lock says that this process is there: %s", error)
            self.leave()

    def leave(self) -> None:
        if self._lock is not None:
            for path in (self._beginning, self._path):
                path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def gone(self) -> tuple[str, ...]:
        """The processes that have ended without leaving."""
        try:
            return tuple(path.stem for path in self._folder.glob(f"*{_READY}") if path != self._path and _is_free(path))
        except OSError:
            return ()

    def forget(self, holder: str) -> None:
        """What there was to do about a process that is gone has been done."""
        (self._folder / f"{holder}{_READY}").unlink(missing_ok=True)


def _is_free(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
