"""Which gateway serves a home: the one that holds the lock on its file, for as long as it lives.

The system lets go of a lock with its process, however that ends. So the lock decides: what stands in the file says who
holds it, and means nothing once nobody does. No process is looked for by its number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import msgspec

from everthread.cli import output as show
from everthread.domain.errors import Busy, StoreUnwritable

FILE = "gateway.lock"
TAKE_S_MAX = 1.0
"""Whoever looks at the lock shares it for a moment: a gateway that starts just then must not take that for another."""
_LOOK_S = 0.02
_BYTES = 1024


class Held(msgspec.Struct, frozen=True):
    """Who holds the lock, in their own words."""

    pid: int
    holder: str
    started_at: float
    port: int | None = None
    namespace: str = ""
    """Where the process's number means that process; empty if that can't be told."""


class Seen(msgspec.Struct, frozen=True):
    running: bool
    by: Held | None = None
    """None if nobody is there, or it has not yet said who it is."""


class Holding:
    """The lock of a gateway, from `take` to `leave`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock: int | None = None

    def take(self, held: Held) -> None:
        """Be the gateway of this home. Raises `Busy` if there is one."""
        deadline = time.monotonic() + TAKE_S_MAX
        while (lock := _locked(self._home)) is None:
            if time.monotonic() >= deadline:
                raise Busy(_taken(look(self._home)))
            time.sleep(_LOOK_S)
        self._lock = lock
        self.tell(held)

    def tell(self, held: Held) -> None:
        """Say anew who holds it. One write, always of the same length: nobody reads half of it."""
        assert self._lock is not None
        os.pwrite(self._lock, msgspec.json.encode(held).ljust(_BYTES - 1) + b"\n", 0)

    def leave(self) -> None:
        """The file stays: whoever removed it might remove the lock of the next one."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None


def look(home: Path) -> Seen:
    """Whether a gateway serves this home now, and which."""
    try:
        lock = os.open(home / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Seen(False)
    except OSError as error:
        raise StoreUnwritable(f"{home / FILE}: {error.strerror}; make it readable for you") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Seen(True, _said(os.pread(lock, _BYTES, 0)))
    finally:
        os.close(lock)
    return Seen(False)


def namespace() -> str:
    """What tells this system's process numbers from those of a container beside it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def who(by: Held | None) -> str:
    return f"process {by.pid}, since {show.local_time(by.started_at)}" if by is not None else "it has just started"


def _taken(seen: Seen) -> str:
    return (
        f"a gateway serves this home already ({who(seen.by)}); everthread gateway stop ends it, "
        "everthread gateway status shows how it is"
    )


def _locked(home: Path) -> int | None:
    path = home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnwritable(f"{path}: {error.strerror}; make it and its folder writable for you") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file that was removed meanwhile is no longer the one that others look at.
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(lock)
        raise StoreUnwritable(f"{path}: {error.strerror}; choose a home where files can be locked") from error
    os.close(lock)
    return None


def _said(content: bytes) -> Held | None:
    try:
        return msgspec.json.decode(content, type=Held)
    except msgspec.MsgspecError:
        return None
