"""The Unix socket of the HTTP interface: bound so that only its user can ever connect, and removed at the end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Generator
from pathlib import Path

from everthread.domain.errors import BadConfig

BACKLOG = 2048
LOCK_S_MAX = 2.0
_POLL_S = 0.02
_MODE = 0o600


class UnixSocket:
    """A listening socket at a path."""

    def __init__(self, path: Path) -> None:
        """Bind and listen. Raise `BadConfig` if something else is at the path."""
        self._path = path
        with _translated(path), _locked(path.parent):
            _remove_stale(path)
            self.listener = _bind(path)
            self._stat = os.lstat(path)

    def remove(self) -> None:
        """Remove the socket, unless another program has put its own in its place."""
        with contextlib.suppress(OSError), _locked(self._path.parent):
            if os.path.samestat(os.lstat(self._path), self._stat):
                self._path.unlink()


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if sys.platform == "linux":
            # Linux creates the file with the mode of the socket, so at no time can another user connect.
            os.fchmod(listener.fileno(), _MODE)
            listener.bind(os.fspath(path))
        else:
            before = os.umask(0o777 & ~_MODE)
            try:
                listener.bind(os.fspath(path))
            finally:
                os.umask(before)
        # Listen inside the lock: to others, a socket that is bound only looks stale.
        listener.listen(BACKLOG)
        if stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
            path.unlink()
            raise BadConfig(f"can't listen on {path}: its file system ignores the mode 0600; choose another folder")
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a process that was killed. Raise `BadConfig` for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadConfig(f"can't listen on {path}: it exists and is no socket; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        # A full queue of a living server must not block.
        client.setblocking(False)
        code = client.connect_ex(os.fspath(path))
    if code != errno.ECONNREFUSED:
        raise BadConfig(f"can't listen on {path}: another program listens on it; choose another path")
    path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Lock the folder: two gateways of two homes must not each take the other's new socket for a stale one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(path: Path) -> Generator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise BadConfig(f"can't listen on {path}: its folder is locked; try again, or choose another path") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise BadConfig(f"can't listen on {path}: {why}; choose another gateway.http.socket") from error
