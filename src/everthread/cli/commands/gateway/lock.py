"""The lock of a home's gateway: one gateway per home.

The gateway holds an flock on a file for as long as it lives. The system releases the lock when the process ends,
however that happens. The content of the file names the holder and is valid only while the lock is held. No process is
looked up by its id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import msgspec

from everthread.domain.errors import Busy, StoreUnwritable
from everthread.domain.text_format import local_time

FILE = "gateway.lock"
ACQUIRE_S_MAX = 1.0
"""Retry for this long: `read_lock` takes a shared lock for a moment, which must not look like another gateway."""
_POLL_S = 0.02
_BYTES = 1024


class LockHolder(msgspec.Struct, frozen=True):
    """The process that holds the lock, as written by itself."""

    pid: int
    holder: str
    started_at: float
    port: int | None = None
    socket: str | None = None
    """The Unix socket of the HTTP interface, in place of the port."""
    namespace: str = ""
    """The PID namespace that `pid` belongs to; empty if unknown."""


class LockState(msgspec.Struct, frozen=True):
    running: bool
    by: LockHolder | None = None
    """The holder. None if there is none, or it has not written its name yet."""


class GatewayLock:
    """The lock of a gateway, held from `acquire` to `release`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock: int | None = None

    def acquire(self, holder: LockHolder) -> None:
        """Acquire the lock. Raises `Busy` if another gateway holds it."""
        deadline = time.monotonic() + ACQUIRE_S_MAX
        while (lock := _try_lock(self._home)) is None:
            if time.monotonic() >= deadline:
                raise Busy(
                    f"a gateway is already running for this home ({describe_holder(read_lock(self._home).by)}); stop "
                    "it with everthread gateway stop, or check it with everthread gateway status"
                )
            time.sleep(_POLL_S)
        self._lock = lock
        self.write_holder(holder)

    def write_holder(self, holder: LockHolder) -> None:
        """Write the holder to the file, in one write of fixed length, so that no reader sees half of it."""
        assert self._lock is not None
        os.pwrite(self._lock, msgspec.json.encode(holder).ljust(_BYTES - 1) + b"\n", 0)

    def release(self) -> None:
        """Release the lock. The file stays: removing it could remove the lock of the next gateway."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None


def read_lock(home: Path) -> LockState:
    """Return whether a gateway serves this home, and its holder."""
    try:
        lock = os.open(home / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return LockState(False)
    except OSError as error:
        raise StoreUnwritable(f"{home / FILE}: {error.strerror}; make it readable for your user") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockState(True, _decode(os.pread(lock, _BYTES, 0)))
    finally:
        os.close(lock)
    return LockState(False)


def pid_namespace() -> str:
    """Identify the PID namespace, to tell process ids of containers apart; empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def describe_holder(by: LockHolder | None) -> str:
    return f"process {by.pid}, since {local_time(by.started_at)}" if by is not None else "starting"


def describe_http(by: LockHolder | None) -> str:
    """Return the address of the HTTP interface; empty if there is none."""
    if by is None or (by.port is None and by.socket is None):
        return ""
    return f"HTTP on {by.socket}" if by.socket is not None else f"HTTP on port {by.port}"


def _try_lock(home: Path) -> int | None:
    path = home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnwritable(
            f"{path}: {error.strerror}; make the file and its folder writable for your user"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the file was removed meanwhile, others open a new one: this lock is worthless.
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(lock)
        raise StoreUnwritable(f"{path}: {error.strerror}; choose a home on a file system with file locks") from error
    os.close(lock)
    return None


def _decode(content: bytes) -> LockHolder | None:
    try:
        return msgspec.json.decode(content, type=LockHolder)
    except msgspec.MsgspecError:
        return None
