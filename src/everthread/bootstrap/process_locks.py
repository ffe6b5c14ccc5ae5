"""Detect dead processes with flock: each process of a home locks its own file while it lives.

The kernel releases a lock when its process ends, in whatever way. No process ids are compared, so reused ids and other
containers do no harm: processes that share the store's file share the kernel that holds the locks. A process without
such a file is never considered dead; its lease has to expire.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger("everthread")

_SUFFIX = ".alive"


class ProcessLocks:
    """The lock files of one home, and the lock of this process."""

    def __init__(self, folder: Path, holder: str) -> None:
        self._folder = folder
        self._path = folder / f"{holder}{_SUFFIX}"
        self._unlocked_path = folder / f"{holder}.new"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create and lock the file of this process. If files can't be locked, only the lease protects the process."""
        if self._lock is not None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._unlocked_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Rename after locking: another process would take an unlocked file for that of a dead process.
            self._unlocked_path.rename(self._path)
        except OSError as error:
            log.info("could not lock the file of this process; only its lease protects it: %s", error)
            self.release()

    def release(self) -> None:
        if self._lock is not None:
            for path in (self._unlocked_path, self._path):
                path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def dead_holders(self) -> tuple[str, ...]:
        """Return the holders of the processes that ended without `release`."""
        try:
            return tuple(
                path.stem for path in self._folder.glob(f"*{_SUFFIX}") if path != self._path and _is_free(path)
            )
        except OSError:
            return ()

    def other_processes(self) -> tuple[int, ...]:
        """Return the ids of the other live processes that serve this home."""
        try:
            live = [path for path in self._folder.glob(f"*{_SUFFIX}") if path != self._path and not _is_free(path)]
        except OSError:
            return ()
        return tuple(sorted(int(number) for path in live if (number := path.stem.partition("-")[0]).isdecimal()))

    def remove(self, holder: str) -> None:
        """Remove the file of a dead process after its leases were released."""
        (self._folder / f"{holder}{_SUFFIX}").unlink(missing_ok=True)


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
