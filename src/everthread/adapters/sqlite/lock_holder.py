"""Find the process that holds the write lock of a database."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_WRITE_LOCK = "120"
"""The byte of the -shm file that a writer locks in WAL mode."""


class LockHolder(Struct, frozen=True):
    process: int
    stopped: bool
    """It was suspended, by Ctrl-Z or SIGSTOP, and does nothing until it is continued."""


def find_lock_holder(path: Path) -> LockHolder | None:
    """Return the process that holds the write lock, if the system reports it (Linux only)."""
    # F_GETLK needs a descriptor of the file, and closing it would release the locks of SQLite in this process.
    try:
        inode = str(os.stat(f"{path}-shm").st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # Number, POSIX, ADVISORY, WRITE, process, device:inode, first byte, last byte.
        fields = line.split()
        if fields[1:4] == ["POSIX", "ADVISORY", "WRITE"] and fields[6:] == [_WRITE_LOCK, _WRITE_LOCK]:
            process, file = int(fields[4]), fields[5]
            # A process in another PID namespace is listed as 0.
            if file.rpartition(":")[2] == inode and process > 0:
                return LockHolder(process, _is_stopped(process))
    return None


def _is_stopped(process: int) -> bool:
    try:
        # The name of the program, in parentheses, may contain anything.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
